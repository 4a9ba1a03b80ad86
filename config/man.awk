# scdoc writes a paragraph after each heading and at the end of each indented part. It has no text, and mandoc warns of it.
# Here a paragraph begins only before text of its own.
$0 == ".P" { paragraph = 1; next }
/^\.(TH|SH|SS) / { print; paragraph = 0; heading = 1; next }
$0 == ".RE" { print; next }
paragraph && !heading { print ".P" }
{ print; paragraph = heading = 0 }

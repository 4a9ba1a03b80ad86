# Completion of commctl for fish. commctl itself says what there is: client/commctl/complete.h.
function __commctl_complete
    set -l typed (commandline -opc) (commandline -ct)
    for line in (commctl complete $typed[2..-1] 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c commctl -f -a '(__commctl_complete)'

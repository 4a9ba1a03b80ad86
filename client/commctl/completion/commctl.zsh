#compdef commctl
# Completion of commctl for zsh. commctl itself says what there is: client/commctl/complete.h.
_commctl() {
    local line
    local -a found
    local files=
    for line in ${(f)"$(${words[1]} complete "${(@)words[2,CURRENT]}" 2>/dev/null)"}; do
        if [[ $line == :files ]]; then
            files=yes
        else
            found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        fi
    done
    _describe commctl found
    [[ -z $files ]] || _files
}
_commctl "$@"

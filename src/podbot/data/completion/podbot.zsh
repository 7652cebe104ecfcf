#compdef podbot
# Completion of podbot for zsh. Printed by `podbot completion zsh`.
_podbot() {
    local kind line
    local -a lines offers said folders folders_said
    lines=("${(@f)$("${(@Q)words[1]}" completion zsh -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    kind=$lines[1]
    case $kind in
        files) _files ;;
        folders) _files -/ ;;
        "command "*)
            local -i at=${kind#command }
            words=("${(@)words[at + 1,-1]}")
            (( CURRENT -= at ))
            _normal ;;
        words)
            for line in "${(@)lines[2,-1]}"; do
                if [[ ${line%%$'\t'*} == */ ]]; then
                    folders+=("${line%%$'\t'*}")
                else
                    offers+=("${line%%$'\t'*}")
                    said+=("${line%%$'\t'*}${${line#*$'\t'}:+  -- ${line#*$'\t'}}")
                fi
            done
            (( $#offers )) && compadd -l -d said -a offers
            (( $#folders )) && compadd -S '' -a folders ;;
    esac
}
if [[ $funcstack[1] == _podbot ]]; then
    _podbot "$@"
else
    compdef _podbot podbot
fi

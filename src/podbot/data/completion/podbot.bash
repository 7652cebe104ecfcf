# Completion of podbot for bash. Printed by `podbot completion bash`.
_podbot() {
    local line lines kind
    COMPREPLY=()
    # What stands behind the cursor does not count; a word with quotes is left to bash.
    case "${COMP_WORDS[COMP_CWORD]}" in
        [\"\'\$\`]*) compopt -o default; return ;;
    esac
    mapfile -t lines < <(
        "${COMP_WORDS[0]}" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD - 1}" \
            "${COMP_WORDS[COMP_CWORD]//\\/}" 2>/dev/null
    )
    kind=${lines[0]-}
    case $kind in
        files) compopt -o default ;;
        folders) compopt -o dirnames; compopt -o filenames; compopt -o plusdirs ;;
        "command "*)
            if declare -F _command_offset >/dev/null; then
                _command_offset $((${kind#command } + 1))
            else
                mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
                compopt -o default
            fi ;;
        words)
            for line in "${lines[@]:1}"; do
                # Names may come from inside: nothing in one may mean anything to the shell.
                printf -v line %q "${line%%$'\t'*}"
                COMPREPLY+=("$line")
            done
            if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]]; then
                compopt -o nospace
            fi ;;
    esac
}
complete -F _podbot podbot

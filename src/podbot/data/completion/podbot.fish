# Completion of podbot for fish. Printed by `podbot completion fish`.
function __podbot_complete
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    set -l current (commandline --current-token --cut-at-cursor)
    set -l lines ($words[1] completion fish -- $words[2..-1] "$current" 2>/dev/null)
    set -l kind (string split ' ' -- $lines[1])
    switch "$kind[1]"
        case files
            __fish_complete_path "$current"
        case folders
            __fish_complete_directories "$current"
        case command
            __fish_complete_subcommand --fcs-skip=$kind[2]
        case words
            printf '%s\n' $lines[2..-1]
    end
end
complete --command podbot --no-files --arguments '(__podbot_complete)'

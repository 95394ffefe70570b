"""Completion in bash of words that bash splits.

Bash splits words at `:`, `=` and `@` (its COMP_WORDBREAKS), which occur in ids and URLs. click's script passes the
pieces on as separate words, so it completes nothing after a URL, and no id like `taubench:7`.
"""

from __future__ import annotations

from click.shell_completion import BashComplete

__all__ = ["Bash"]

_SOURCE = r"""%(complete_func)s() {
    local IFS=$'\n' response type value word typed=${COMP_WORDS[COMP_CWORD]}
    # Pieces without a blank between them on the line are one word.
    local rest=${COMP_LINE#*"${COMP_WORDS[0]}"} words=("${COMP_WORDS[0]}") last=0
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ $rest == [[:blank:]]* ]]; then words[++last]=$word; else words[last]+=$word; fi
        rest=${rest#"${rest%%%%[![:blank:]]*}"}
        rest=${rest#"$word"}
    done
    # Bash replaces only the last piece with the completion, and puts an @ in front of it.
    [[ $typed == *[!:=@]* ]] || typed=
    local begun=${words[last]%%"$typed"}
    begun=${begun%%@}

    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$last %(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                [[ ${words[last]} == [\'\"]* ]] || printf -v value %%q "$value"
                COMPREPLY+=("${value#"$begun"}")
                ;;
        esac
    done <<< "$response"
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """click's completion class, with the script above."""

    source_template = _SOURCE

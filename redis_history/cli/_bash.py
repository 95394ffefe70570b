"""Completion in bash, for words that bash takes apart.

Bash parts words at `:`, `=` and `@` (its COMP_WORDBREAKS), which ids and URLs have. click's own script passes the
pieces on as if they were words, so nothing behind a URL is completed, and no id like `taubench:7`.
"""

from __future__ import annotations

from click.shell_completion import BashComplete

__all__ = ["Bash"]

_SOURCE = r"""%(complete_func)s() {
    local IFS=$'\n' response type value word typed=${COMP_WORDS[COMP_CWORD]}
    # What no blank parts on the line is one word.
    local rest=${COMP_LINE#*"${COMP_WORDS[0]}"} words=("${COMP_WORDS[0]}") last=0
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ $rest == [[:blank:]]* ]]; then words[++last]=$word; else words[last]+=$word; fi
        rest=${rest#"${rest%%%%[![:blank:]]*}"}
        rest=${rest#"$word"}
    done
    # Bash puts what is chosen in place of the last piece only, with an @ in front of it.
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
    """As click's, with a script of our own."""

    source_template = _SOURCE

"""Completion in shells: what to source, and the words that a shell or kubectl asks for."""

import argparse
import sys
from collections.abc import Sequence

from rlhf_api.errors.model_fields import field_paths
from rlhf_api.spec import Spec

from ..console.completion import Candidates, complete
from ..console.exits import print_line
from ..console.manifest_arguments import override
from ..console.subcommands import Commands, add_command
from .argument_types import job_or_manifest, job_or_run, object_name
from .arguments import cluster_options

_NO_FILES, _NO_SPACE = 4, 2
"""Bits of the last line of an answer, as kubectl reads it."""

ASKING = ("completion", "words", "--")
"""Arguments before the words of a line that a shell asks about."""

_BASH = """# bash: source <(rlhf completion bash)
_rlhf() {
  local line directive words=()
  while IFS= read -r line; do words+=("${line%%$'\\t'*}"); done \\
    < <(rlhf completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  COMPREPLY=()
  ((${#words[@]})) || return
  directive=${words[-1]#:}
  unset 'words[-1]'
  COMPREPLY=("${words[@]}")
  if ((directive & 2)); then compopt -o nospace; fi
  if ! ((directive & 4)); then compopt -o default; fi
}
complete -F _rlhf rlhf"""
_ZSH = """#compdef rlhf
# zsh: source <(rlhf completion zsh)
_rlhf() {
  local line directive
  local -a answer described joined
  answer=("${(@f)$(rlhf completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  directive=${answer[-1]#:}
  for line in "${(@)answer[1,-2]}"; do
    described+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
  done
  if ((directive & 2)); then joined=(-S ''); fi
  _describe rlhf described $joined
  if ! ((directive & 4)); then _files; fi
}
compdef _rlhf rlhf"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH}


def add_completion(commands: Commands) -> None:
    parser = add_command(
        commands, "completion", help="print what makes bash or zsh complete this program's arguments"
    )
    parser.add_argument("shell", choices=[*_SCRIPTS], help="the shell that sources what is printed")


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    print_line(_SCRIPTS[options.shell], sys.stdout)
    return 0


def read_line(arguments: Sequence[str]) -> Sequence[str] | None:
    """The line that a shell asks about; None for arguments of a user. They are not parsed, as they are those of any
    command."""
    return arguments[len(ASKING) :] if (*arguments[: len(ASKING)],) == ASKING else None


def answer(parser: argparse.ArgumentParser, line: Sequence[str]) -> int:
    """Prints each word that may stand for the last one, a tab and its description; and last the directive of
    kubectl's plugins."""
    candidates = complete(parser, line or [""], _VALUES)
    for word, about in candidates.words:
        print_line(f"{word}\t{about}" if about else word, sys.stdout)
    directive = (0 if candidates.files else _NO_FILES) | (_NO_SPACE if candidates.joined else 0)
    print_line(f":{directive}", sys.stdout)
    return 0


def _jobs(line: Sequence[str]) -> Candidates:
    """Names of the jobs in the namespace that the line names; none where the cluster gives no answer."""
    from .job_names import read_names  # the Kubernetes client loads slowly, and other words do not need it

    options, _ = cluster_options().parse_known_args(line[:-1])
    names = read_names(options.kubeconfig, options.context, options.namespace)
    return Candidates(tuple((name, "") for name in names))


def _jobs_and_files(line: Sequence[str]) -> Candidates:
    return Candidates(_jobs(line).words, files=True)


def _fields(_line: Sequence[str]) -> Candidates:
    return Candidates(tuple((f"{path}=", "") for path in field_paths(Spec)), joined=True)


_VALUES = {
    object_name: _jobs,
    job_or_run: _jobs_and_files,
    job_or_manifest: _jobs_and_files,
    override: _fields,
    "--set": _fields,
}
"""Completions of positional arguments, by their type, and of options."""

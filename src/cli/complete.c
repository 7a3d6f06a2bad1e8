/* Shell completion from the option tables: commands, then the options of the command typed; files otherwise. Tests:
 * tests/e2e/test_cli_e2e.c. */
#include <string.h>

#include "cli/frame.h"

static void bash_options(us_buf *out, const us_option *o) {
    for (; o && o->name; o++) us_buf_printf(out, " --%s", o->name);
}

void us_complete_bash(us_buf *out) {
    us_buf_z(out, "# bash completion of understudy: source <(understudy completion bash)\n"
                  "_understudy() {\n"
                  "    local cur=\"${COMP_WORDS[COMP_CWORD]}\" words=\"\"\n"
                  "    COMPREPLY=()\n"
                  "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                  "        words=\"--help --version");
    for (int i = 0; us_commands[i]; i++) us_buf_printf(out, " %s", us_commands[i]->name);
    us_buf_z(out, "\"\n    else\n        case \"${COMP_WORDS[1]}\" in\n");
    for (int i = 0; us_commands[i]; i++) {
        us_buf_printf(out, "        %s) words=\"", us_commands[i]->name);
        us_buf_z(out, "");
        bash_options(out, us_commands[i]->options);
        bash_options(out, us_cli_globals);
        us_buf_z(out, "\" ;;\n");
    }
    us_buf_z(out, "        esac\n"
                  "    fi\n"
                  "    if [ \"$COMP_CWORD\" -eq 1 ] || [ \"${cur#-}\" != \"$cur\" ]; then\n"
                  "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                  "    fi\n"
                  "}\n"
                  "complete -o default -F _understudy understudy\n");
}

/* A quoted word for zsh and fish: a single quote ends the quotes, so it is left out of the text (help texts hold few).
 */
static void plain(us_buf *out, const char *text, const char *drop) {
    for (const char *p = text; *p; p++)
        if (*p != '\'' && *p != '\\' && !strchr(drop, *p)) us_buf_c(out, *p);
}

static void zsh_options(us_buf *out, const us_option *o) {
    for (; o && o->name; o++) {
        us_buf_printf(out, "                '%s--%s%s[", o->many ? "*" : "", o->name,
                      o->type == US_OPT_FLAG ? "" : "=");
        plain(out, o->help, "[]:");
        us_buf_z(out, "]");
        if (o->type != US_OPT_FLAG) {
            us_buf_c(out, ':');
            plain(out, o->arg, "[]:");
            us_buf_z(out, ":_files");
        }
        us_buf_z(out, "' \\\n");
    }
}

void us_complete_zsh(us_buf *out) {
    us_buf_z(out, "#compdef understudy\n"
                  "# zsh completion of understudy: put this file as _understudy into a folder of fpath\n"
                  "_understudy() {\n"
                  "    local -a commands\n"
                  "    if (( CURRENT == 2 )); then\n"
                  "        commands=(\n");
    for (int i = 0; us_commands[i]; i++) {
        us_buf_printf(out, "            '%s:", us_commands[i]->name);
        plain(out, us_commands[i]->summary, ":");
        us_buf_z(out, "'\n");
    }
    us_buf_z(out, "        )\n"
                  "        _describe command commands\n"
                  "        return\n"
                  "    fi\n"
                  "    local command=$words[2]\n"
                  "    shift words\n"
                  "    (( CURRENT-- ))\n"
                  "    case $command in\n");
    for (int i = 0; us_commands[i]; i++) {
        us_buf_printf(out, "        %s)\n            _arguments \\\n", us_commands[i]->name);
        zsh_options(out, us_commands[i]->options);
        zsh_options(out, us_cli_globals);
        us_buf_z(out, "                '*:file:_files'\n            ;;\n");
    }
    us_buf_z(out, "    esac\n}\n_understudy \"$@\"\n");
}

static void fish_options(us_buf *out, const char *command, const us_option *o) {
    for (; o && o->name; o++) {
        us_buf_printf(out, "complete -c understudy -n '__fish_seen_subcommand_from %s' -l %s", command, o->name);
        if (o->letter) us_buf_printf(out, " -s %c", o->letter);
        if (o->type != US_OPT_FLAG) us_buf_z(out, " -r");
        us_buf_z(out, " -d '");
        plain(out, o->help, "");
        us_buf_z(out, "'\n");
    }
}

void us_complete_fish(us_buf *out) {
    us_buf_z(
        out,
        "# fish completion of understudy: understudy completion fish > ~/.config/fish/completions/understudy.fish\n");
    for (int i = 0; us_commands[i]; i++) {
        us_buf_printf(out, "complete -c understudy -f -n __fish_use_subcommand -a %s -d '", us_commands[i]->name);
        plain(out, us_commands[i]->summary, "");
        us_buf_z(out, "'\n");
    }
    for (int i = 0; us_commands[i]; i++) {
        fish_options(out, us_commands[i]->name, us_commands[i]->options);
        fish_options(out, us_commands[i]->name, us_cli_globals);
    }
}

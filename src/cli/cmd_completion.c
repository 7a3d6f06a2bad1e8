/* understudy completion SHELL: a completion script made from the option tables. */
#include <string.h>

#include "cli/frame.h"

static us_status run(us_cli *cli, us_err *err) {
    const char *shell = us_cli_arg(cli, 0);
    us_buf b = {0};
    if (strcmp(shell, "bash") == 0)
        us_complete_bash(&b);
    else if (strcmp(shell, "zsh") == 0)
        us_complete_zsh(&b);
    else if (strcmp(shell, "fish") == 0)
        us_complete_fish(&b);
    else
        return us_cli_usage(cli, err, "no completion for the shell '%s': bash, zsh, fish", shell);
    return us_cli_print(&b, us_cli_out(cli), err);
}

const us_command us_cmd_completion = {
    .name = "completion",
    .summary = "Print a completion script for bash, zsh or fish.",
    .usage = "bash|zsh|fish",
    .min_args = 1,
    .max_args = 1,
    .run = run,
    .examples = "  source <(understudy completion bash)\n",
};

/* understudy help [COMMAND] */
#include "cli/frame.h"

static us_status run(us_cli *cli, us_err *err) {
    return us_cli_page(cli, us_help_text, err);
}

const us_command us_cmd_help = {
    .name = "help",
    .summary = "Explain the program or one command.",
    .usage = "[COMMAND]",
    .max_args = 1,
    .run = run,
};

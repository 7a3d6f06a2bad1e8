/* understudy man [COMMAND] */
#include "cli/frame.h"

static us_status run(us_cli *cli, us_err *err) {
    return us_cli_page(cli, us_man_text, err);
}

const us_command us_cmd_man = {
    .name = "man",
    .summary = "Print the manual page of the program or of one command, as roff.",
    .usage = "[COMMAND]",
    .description = "Read it with: understudy man proxy | man -l -",
    .max_args = 1,
    .run = run,
};

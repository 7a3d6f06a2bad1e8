/* The program `understudy`. Everything is in cli/cli.c, so that tests can link it with a table of their own. */
#include "cli/frame.h"

int main(int argc, char **argv) {
    return us_cli_main(argc, argv);
}

/**
 * The command's frame: one option table per subcommand drives parsing, --help, man page and shell completion.
 *
 * A command file (cmd_<name>.c) holds its us_command with options and a run function: read options, call the library, print. Global
 * options (--json, --threads, --seed, --help, --quiet) are added by the frame. Exit status: 0 done, 1 refused or failed, 2 wrong usage,
 * 3 the answer is no. On failure the frame prints the one line and drops the notes; on success it prints the notes on standard error.
 */
#ifndef US_CLI_CLI_H
#define US_CLI_CLI_H

#include <stdio.h>

#include "base/ctx.h"
#include "base/str.h"

typedef enum us_opt_type {
    US_OPT_FLAG,   /* present or not */
    US_OPT_STRING, /* any text; may be given several times when `many` */
    US_OPT_INT,    /* int64 */
    US_OPT_DOUBLE,
} us_opt_type;

typedef struct us_option {
    const char *name;   /* long name without dashes */
    char letter;        /* short form or 0 */
    us_opt_type type;
    const char *arg;    /* placeholder in help, e.g. "N"; NULL for flags */
    const char *help;   /* one sentence; says the default and the unit */
    bool many;
} us_option;

typedef struct us_cli us_cli;

typedef struct us_command {
    const char *name;
    const char *summary;            /* one line for the list of commands */
    const char *usage;              /* e.g. "SRC DST [options]" */
    const char *description;        /* paragraphs for --help and the man page */
    const us_option *options;       /* ends with a NULL name */
    int min_args, max_args;         /* positional; max -1 = any number */
    /** Returns US_OK, or a failure that the frame prints; US_E_DIFFERENT makes the exit status 3. */
    us_status (*run)(us_cli *cli, us_err *err);
    const char *examples;           /* for the man page; may be NULL */
} us_command;

us_ctx *us_cli_ctx(us_cli *c);
bool us_cli_json(const us_cli *c);      /* --json was given */
int us_cli_n_args(const us_cli *c);
const char *us_cli_arg(const us_cli *c, int i);
/** Option values by long name. flag: given? string: last value or def. */
bool us_cli_flag(const us_cli *c, const char *name);
const char *us_cli_string(const us_cli *c, const char *name, const char *def);
int64_t us_cli_int(const us_cli *c, const char *name, int64_t def);
double us_cli_double(const us_cli *c, const char *name, double def);
/** All values of a `many` option in order; n may be 0. */
const char *const *us_cli_strings(const us_cli *c, const char *name, int *n);
/** Wrong usage found by the command itself: prints like the frame, exit status 2. */
us_status us_cli_usage(us_cli *c, us_err *err, const char *fmt, ...) US_PRINTF(3, 4);
/** Standard output, buffered; a write error is noticed at exit. */
FILE *us_cli_out(us_cli *c);

/** All commands, sorted by name; NULL-terminated. CMake writes the table from the list of cmd_*.c: a file cmd_foo.c that defines
 *  `const us_command us_cmd_foo` (declared nowhere else) is all a new command takes. */
extern const us_command *const us_commands[];

#endif

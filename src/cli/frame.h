/**
 * What the files of the command's frame share: the parsed command line, the texts made from the option tables, the
 * progress line. Command files include cli/cli.h only. Tests: tests/unit/test_cli.c, tests/e2e/test_cli_e2e.c.
 */
#ifndef US_CLI_FRAME_H
#define US_CLI_FRAME_H

#include "base/alloc.h"
#include "cli/cli.h"

enum { US_EXIT_DONE = 0, US_EXIT_FAILED = 1, US_EXIT_USAGE = 2, US_EXIT_NO = 3 };

/** One occurrence of an option. */
typedef struct us_cli_value {
    const us_option *opt;
    bool negated; /* --no-NAME */
} us_cli_value;

struct us_cli {
    const us_command *cmd;
    us_ctx *ctx;
    FILE *out;
    us_arena arena;
    us_cli_value *values; /* grouped by option, each group in the order given */
    const char **texts;   /* texts[i] belongs to values[i]; "" for flags */
    int n_values;
    const char **args;
    int n_args;
    bool help;  /* --help was given: nothing else is checked */
    bool usage; /* the command found wrong usage: exit status 2 */
};

/** Options that every command has; ends with a NULL name. */
extern const us_option us_cli_globals[];

/** Parse the words behind the command's name. Wrong usage is US_E_INVAL, class "usage". The words are borrowed. */
us_status us_cli_parse(us_cli *c, const us_command *cmd, int n, char **words, us_err *err) US_WARN_UNUSED;
/** Free what parsing allocated. */
void us_cli_close(us_cli *c);
/** The whole program; returns the exit status. */
int us_cli_main(int argc, char **argv);

/** Command by name, or NULL. */
const us_command *us_cli_find(const char *name);
/** The command or option whose name is nearest to a mistyped one, or NULL when none is near. */
const char *us_cli_nearest_command(const char *name);
const char *us_cli_nearest_option(const us_command *cmd, const char *name);
/** "unknown command", with the nearest known one. */
us_status us_cli_unknown_command(const char *name, us_err *err);

/* Texts from the tables; each appends to out. cmd NULL = the program as a whole. */
void us_help_text(us_buf *out, const us_command *cmd);
void us_man_text(us_buf *out, const us_command *cmd);
void us_complete_bash(us_buf *out);
void us_complete_zsh(us_buf *out);
void us_complete_fish(us_buf *out);

/** Print and free b. */
us_status us_cli_print(us_buf *b, FILE *out, us_err *err) US_WARN_UNUSED;
/** What `help` and `man` do: print the page of the command named by the argument, or of the program. */
us_status us_cli_page(us_cli *c, void (*make)(us_buf *out, const us_command *cmd), us_err *err) US_WARN_UNUSED;

/** The progress line of at most width columns, without line end. */
void us_progress_line(const us_progress *p, int width, bool color, char *out, size_t cap);
/** Show progress on standard error when that is a terminal. */
void us_progress_attach(us_ctx *ctx);
/** Wipe the line, so that what is printed next stands alone. */
void us_progress_clear(void);

#endif

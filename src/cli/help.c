/* --help from the option tables. Tests: tests/unit/test_cli.c. */
#include <string.h>

#include "cli/frame.h"

enum { WIDTH = 100 };

/*
 * Append text wrapped at WIDTH, each line indented; the first line begins at column `at`. A line end inside a paragraph
 * is a space; one before an empty or indented line is kept.
 */
static void wrap(us_buf *out, const char *text, int at, int indent) {
    const char *p = text;
    int column = at;
    while (*p) {
        if (*p == '\n') {
            bool kept = p[1] == '\n' || p[1] == ' ' || p[1] == 0 || column == 0;
            if (kept) us_buf_c(out, '\n');
            if (kept) column = 0;
            p++;
            continue;
        }
        size_t n = strcspn(p, " \n");
        if (column > indent && column + 1 + (int)n > WIDTH) {
            us_buf_c(out, '\n');
            column = 0;
        }
        if (n) {
            if (column == 0) {
                us_buf_printf(out, "%*s", indent, "");
                column = indent;
            } else if (column > indent) {
                us_buf_c(out, ' ');
                column++;
            }
            us_buf_add(out, p, n);
            column += (int)n;
        }
        p += n;
        while (*p == ' ') p++;
    }
    us_buf_c(out, '\n');
}

static void option_lines(us_buf *out, const us_option *options) {
    enum { COLUMN = 28 };
    for (const us_option *o = options; o && o->name; o++) {
        char left[128];
        char letter[8] = "    ";
        if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        int n = snprintf(left, sizeof left, "  %s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        us_buf_z(out, left);
        if (n + 2 > COLUMN)
            us_buf_printf(out, "\n%*s", COLUMN, "");
        else
            us_buf_printf(out, "%*s", COLUMN - n, "");
        wrap(out, o->help, COLUMN, COLUMN);
    }
}

static void program_help(us_buf *out) {
    us_buf_z(out, "understudy: small, faithful stand-ins of large Mixture-of-Experts checkpoints\n\n"
                  "Usage: understudy COMMAND [arguments] [options]\n\nCommands:\n");
    for (int i = 0; us_commands[i]; i++) {
        us_buf_printf(out, "  %-14s", us_commands[i]->name);
        wrap(out, us_commands[i]->summary, 16, 16);
    }
    us_buf_z(out, "\nOptions of every command:\n");
    option_lines(out, us_cli_globals);
    us_buf_z(out, "\n'understudy help COMMAND' tells more; 'understudy --version' prints the version.\n");
}

static void exit_lines(us_buf *out) {
    us_buf_z(out, "\nExit status: 0 done, 1 refused or failed, 2 wrong usage, 3 the answer is no.\n");
}

static void examples(us_buf *out, const char *text) {
    us_buf_z(out, "\nExamples:\n");
    for (const char *p = text; *p; p += *p == '\n') {
        size_t n = strcspn(p, "\n");
        us_buf_printf(out, "%s%.*s\n", n && *p != ' ' ? "  " : "", (int)n, p);
        p += n;
    }
}

void us_help_text(us_buf *out, const us_command *cmd) {
    if (!cmd) {
        program_help(out);
        return;
    }
    us_buf_printf(out, "Usage: understudy %s %s\n\n", cmd->name, cmd->usage);
    wrap(out, cmd->summary, 0, 0);
    if (cmd->description && cmd->description[0]) {
        us_buf_c(out, '\n');
        wrap(out, cmd->description, 0, 0);
    }
    if (cmd->options && cmd->options->name) {
        us_buf_z(out, "\nOptions:\n");
        option_lines(out, cmd->options);
    }
    us_buf_z(out, "\nOptions of every command:\n");
    option_lines(out, us_cli_globals);
    if (cmd->examples) examples(out, cmd->examples);
    exit_lines(out);
}

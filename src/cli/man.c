/* Man pages (roff) from the option tables. Tests: tests/unit/test_cli.c. */
#include <ctype.h>
#include <string.h>

#include "cli/frame.h"

/* Text with roff's special characters escaped. at_start: the text begins a line, where '.' and '\'' are requests. */
static void roff(us_buf *out, const char *text, bool at_start) {
    for (const char *p = text; *p; p++) {
        if (at_start && (*p == '.' || *p == '\'')) us_buf_z(out, "\\&");
        if (*p == '\\')
            us_buf_z(out, "\\e");
        else if (*p == '-')
            us_buf_z(out, "\\-");
        else
            us_buf_c(out, *p);
        at_start = *p == '\n';
    }
}

/* Paragraphs: an empty line becomes .PP; an indented line is kept as it is. */
static void paragraphs(us_buf *out, const char *text) {
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        if (n == 0) {
            us_buf_z(out, ".PP\n");
        } else {
            char line[1024];
            snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), p);
            bool list = line[0] == ' ';
            if (list) us_buf_z(out, ".br\n");
            roff(out, line, true);
            us_buf_c(out, '\n');
        }
        p += n;
        if (*p == '\n') p++;
    }
}

static void options(us_buf *out, const us_option *o) {
    for (; o && o->name; o++) {
        us_buf_z(out, ".TP\n");
        if (o->letter) us_buf_printf(out, "\\fB\\-%c\\fR, ", o->letter);
        us_buf_z(out, "\\fB\\-\\-");
        roff(out, o->name, false);
        us_buf_z(out, "\\fR");
        if (o->arg) {
            us_buf_z(out, " \\fI");
            roff(out, o->arg, false);
            us_buf_z(out, "\\fR");
        }
        us_buf_c(out, '\n');
        roff(out, o->help, true);
        us_buf_c(out, '\n');
    }
}

static void title(us_buf *out, const char *name, const char *summary) {
    us_buf_z(out, ".TH UNDERSTUDY");
    if (name) us_buf_c(out, '-');
    for (const char *p = name ? name : ""; *p; p++) us_buf_c(out, (char)toupper((unsigned char)*p));
    us_buf_printf(out, " 1 \"\" \"understudy %s\" \"Understudy\"\n.SH NAME\nunderstudy%s%s \\- ", US_VERSION,
                  name ? "\\-" : "", name ? name : "");
    roff(out, summary, false);
    us_buf_z(out, "\n.SH SYNOPSIS\n");
}

static void exit_status(us_buf *out) {
    us_buf_z(out, ".SH EXIT STATUS\n.TP\n0\nDone.\n.TP\n1\nRefused or failed; one line on standard error says what, "
                  "where, and what to do.\n"
                  ".TP\n2\nWrong usage of the command line.\n.TP\n3\nThe answer is no.\n"
                  ".SH ENVIRONMENT\n.TP\nNO_COLOR\nNo colour in the progress line.\n");
}

static void program_page(us_buf *out) {
    title(out, NULL, "small, faithful stand-ins of large Mixture-of-Experts checkpoints");
    us_buf_z(out, "\\fBunderstudy\\fR \\fICOMMAND\\fR [arguments] [options]\n.SH COMMANDS\n");
    for (int i = 0; us_commands[i]; i++) {
        us_buf_printf(out, ".TP\n\\fBunderstudy\\-%s\\fR(1)\n", us_commands[i]->name);
        roff(out, us_commands[i]->summary, true);
        us_buf_c(out, '\n');
    }
    us_buf_z(out, ".SH OPTIONS OF EVERY COMMAND\n");
    options(out, us_cli_globals);
    exit_status(out);
}

void us_man_text(us_buf *out, const us_command *cmd) {
    if (!cmd) {
        program_page(out);
        return;
    }
    title(out, cmd->name, cmd->summary);
    us_buf_printf(out, "\\fBunderstudy %s\\fR ", cmd->name);
    roff(out, cmd->usage, false);
    us_buf_z(out, "\n.SH DESCRIPTION\n");
    paragraphs(out, cmd->description && cmd->description[0] ? cmd->description : cmd->summary);
    if (cmd->options && cmd->options->name) {
        us_buf_z(out, ".SH OPTIONS\n");
        options(out, cmd->options);
    }
    us_buf_z(out, ".SH OPTIONS OF EVERY COMMAND\n");
    options(out, us_cli_globals);
    exit_status(out);
    if (cmd->examples) {
        us_buf_z(out, ".SH EXAMPLES\n.nf\n");
        roff(out, cmd->examples, true);
        us_buf_z(out, "\n.fi\n");
    }
    us_buf_z(out, ".SH SEE ALSO\n\\fBunderstudy\\fR(1)\n");
}

/* Parsing by option table, the accessors that commands use, and the run of one command with its exit status. */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/frame.h"

const us_option us_cli_globals[] = {
    {"json", 0, US_OPT_FLAG, NULL, "Print the result as one JSON object on standard output.", false},
    {"threads", 0, US_OPT_INT, "N", "Threads to use; 0 = all processors this process may run on (default 0).", false},
    {"seed", 0, US_OPT_INT, "N", "Seed of everything that is drawn at random (default 0).", false},
    {"quiet", 'q', US_OPT_FLAG, NULL, "No progress and no notes; errors are still reported.", false},
    {"help", 'h', US_OPT_FLAG, NULL, "Print this help.", false},
    {NULL, 0, US_OPT_FLAG, NULL, NULL, false},
};

/* ---- finding options ---- */

static const us_option *find_in(const us_option *o, const char *name, size_t n) {
    for (; o && o->name; o++)
        if (strlen(o->name) == n && memcmp(o->name, name, n) == 0) return o;
    return NULL;
}

static const us_option *find_long(const us_command *cmd, const char *name, size_t n) {
    const us_option *o = find_in(cmd->options, name, n);
    return o ? o : find_in(us_cli_globals, name, n);
}

static const us_option *find_letter(const us_command *cmd, char letter) {
    for (const us_option *o = cmd->options; o && o->name; o++)
        if (o->letter == letter) return o;
    for (const us_option *o = us_cli_globals; o->name; o++)
        if (o->letter == letter) return o;
    return NULL;
}

/* Edit distance, capped: names are short. */
static int distance(const char *a, const char *b) {
    enum { MAX = 32 };
    size_t n = strlen(a), m = strlen(b);
    if (n >= MAX || m >= MAX) return MAX;
    int row[MAX + 1];
    for (size_t j = 0; j <= m; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int up = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
            if (up + 1 < best) best = up + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = up;
            row[j] = best;
        }
    }
    return row[m];
}

static void nearer(const char *name, const char *candidate, const char **best, int *least) {
    int d = distance(name, candidate);
    if (d < *least) {
        *least = d;
        *best = candidate;
    }
}

static int near_limit(const char *name) {
    return strlen(name) <= 2 ? 2 : 3; /* a name is near when fewer edits than this make it; a swap of letters is two */
}

const char *us_cli_nearest_command(const char *name) {
    const char *best = NULL;
    int least = near_limit(name);
    for (int i = 0; us_commands[i]; i++) nearer(name, us_commands[i]->name, &best, &least);
    return best;
}

const char *us_cli_nearest_option(const us_command *cmd, const char *name) {
    const char *best = NULL;
    int least = near_limit(name);
    for (const us_option *o = cmd->options; o && o->name; o++) nearer(name, o->name, &best, &least);
    for (const us_option *o = us_cli_globals; o->name; o++) nearer(name, o->name, &best, &least);
    return best;
}

const us_command *us_cli_find(const char *name) {
    for (int i = 0; us_commands[i]; i++)
        if (strcmp(us_commands[i]->name, name) == 0) return us_commands[i];
    return NULL;
}

us_status us_cli_unknown_command(const char *name, us_err *err) {
    us_fail(err, US_E_INVAL, "usage", "there is no command '%s'", name);
    const char *near = us_cli_nearest_command(name);
    if (near) us_err_todo(err, "did you mean '%s'?", near);
    return us_err_todo(err, "'understudy help' lists the commands");
}

/* ---- parsing ---- */

static us_status usage(const us_command *cmd, us_err *err, const char *fmt, ...) US_PRINTF(3, 4);
static us_status usage(const us_command *cmd, us_err *err, const char *fmt, ...) {
    char text[US_ERR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    us_fail(err, US_E_INVAL, "usage", "%s", text);
    return us_err_where(err, "understudy %s", cmd->name);
}

static us_status advise(const us_command *cmd, us_err *err) {
    return us_err_todo(err, "see 'understudy %s --help'", cmd->name);
}

static bool parse_int(const char *z, int64_t *out) {
    const char *digits = z + (*z == '-' || *z == '+');
    if (*digits < '0' || *digits > '9') return false;
    char *end;
    errno = 0;
    long long v = strtoll(z, &end, 10);
    if (*end || errno) return false;
    *out = v;
    return true;
}

/* Decimal numbers only: strtod would also take "inf", "nan", hexadecimal. The program never leaves the C locale. */
static bool parse_double(const char *z, double *out) {
    if (!*z || z[strspn(z, "0123456789.eE+-")]) return false;
    char *end;
    errno = 0;
    double v = strtod(z, &end);
    if (*end || end == z || (errno && (v > 1 || v < -1))) return false;
    *out = v;
    return true;
}

static us_status check_value(const us_command *cmd, const us_option *o, const char *text, us_err *err) {
    int64_t i;
    double d;
    if (o->type == US_OPT_INT && !parse_int(text, &i))
        return usage(cmd, err, "--%s takes a whole number, not '%s'", o->name, text);
    if (o->type == US_OPT_DOUBLE && !parse_double(text, &d))
        return usage(cmd, err, "--%s takes a number, not '%s'", o->name, text);
    return US_OK;
}

static us_status add_value(us_cli *c, const us_option *o, const char *text, bool negated, us_err *err) {
    US_TRY(check_value(c->cmd, o, text, err));
    int at = c->n_values;
    for (int i = 0; i < c->n_values; i++)
        if (c->values[i].opt == o) at = i + 1; /* behind the last of its group */
    for (int i = c->n_values; i > at; i--) {
        c->values[i] = c->values[i - 1];
        c->texts[i] = c->texts[i - 1];
    }
    c->values[at] = (us_cli_value){o, negated};
    c->texts[at] = text;
    c->n_values++;
    if (o == find_in(us_cli_globals, "help", 4)) c->help = true;
    return US_OK;
}

typedef struct words {
    char **w;
    int n, i;
} words;

/* The value of an option that needs one: behind '=' or behind the letter, else the next word. */
static us_status take_value(us_cli *c, const us_option *o, const char *attached, words *in, us_err *err) {
    const char *text = attached;
    if (!text) {
        if (in->i >= in->n) return usage(c->cmd, err, "--%s needs a value (%s)", o->name, o->arg);
        text = in->w[in->i];
        if (text[0] == '-' && text[1] == '-') {
            usage(c->cmd, err, "--%s needs a value (%s), and '%s' looks like an option", o->name, o->arg, text);
            return us_err_todo(err, "write --%s=VALUE when the value itself starts with --", o->name);
        }
        in->i++;
    }
    return add_value(c, o, text, false, err);
}

static us_status parse_long(us_cli *c, const char *word, words *in, us_err *err) {
    const char *name = word + 2, *eq = strchr(name, '=');
    size_t n = eq ? (size_t)(eq - name) : strlen(name);
    const us_option *o = find_long(c->cmd, name, n);
    if (!o && n > 3 && memcmp(name, "no-", 3) == 0) {
        o = find_long(c->cmd, name + 3, n - 3);
        if (o && o->type == US_OPT_FLAG && !eq) return add_value(c, o, "", true, err);
        o = NULL;
    }
    if (!o) {
        char plain[64];
        snprintf(plain, sizeof plain, "%.*s", (int)(n < 60 ? n : 60), name);
        usage(c->cmd, err, "there is no option '--%s'", plain);
        const char *near = us_cli_nearest_option(c->cmd, plain);
        if (near) us_err_todo(err, "did you mean '--%s'?", near);
        return err ? err->code : US_E_INVAL;
    }
    if (o->type != US_OPT_FLAG) return take_value(c, o, eq ? eq + 1 : NULL, in, err);
    if (eq) return usage(c->cmd, err, "--%s takes no value", o->name);
    return add_value(c, o, "", false, err);
}

/* "-q", "-qv", "-n 3", "-n3" */
static us_status parse_short(us_cli *c, const char *word, words *in, us_err *err) {
    for (const char *p = word + 1; *p; p++) {
        const us_option *o = find_letter(c->cmd, *p);
        if (!o) return usage(c->cmd, err, "there is no option '-%c'", *p);
        if (o->type != US_OPT_FLAG) return take_value(c, o, p[1] ? p + 1 : NULL, in, err);
        US_TRY(add_value(c, o, "", false, err));
    }
    return US_OK;
}

static us_status check_counts(us_cli *c, us_err *err) {
    const us_command *cmd = c->cmd;
    for (int i = 1; i < c->n_values; i++)
        if (c->values[i].opt == c->values[i - 1].opt && !c->values[i].opt->many &&
            c->values[i].opt->type != US_OPT_FLAG)
            return usage(cmd, err, "--%s is given twice", c->values[i].opt->name);
    if (c->n_args < cmd->min_args)
        return usage(cmd, err, "%s", c->n_args == 0 ? "the arguments are missing" : "an argument is missing");
    if (cmd->max_args >= 0 && c->n_args > cmd->max_args)
        return usage(cmd, err, "'%s' is one argument too many", c->args[cmd->max_args]);
    int64_t threads = us_cli_int(c, "threads", 0), seed = us_cli_int(c, "seed", 0);
    if (threads < 0 || threads > 4096) return usage(cmd, err, "--threads is 0 to 4096, not %lld", (long long)threads);
    if (seed < 0) return usage(cmd, err, "--seed is not negative, and %lld is", (long long)seed);
    return US_OK;
}

static us_status parse_words(us_cli *c, words *in, us_err *err) {
    bool only_args = false;
    while (in->i < in->n && !c->help) {
        const char *w = in->w[in->i++];
        if (!only_args && strcmp(w, "--") == 0)
            only_args = true;
        else if (!only_args && w[0] == '-' && w[1] == '-')
            US_TRY(parse_long(c, w, in, err));
        else if (!only_args && w[0] == '-' && w[1])
            US_TRY(parse_short(c, w, in, err));
        else
            c->args[c->n_args++] = w;
    }
    return c->help ? US_OK : check_counts(c, err);
}

us_status us_cli_parse(us_cli *c, const us_command *cmd, int n, char **w, us_err *err) {
    *c = (us_cli){.cmd = cmd, .out = stdout};
    size_t room = 1; /* one word can hold several letters, each a value */
    for (int i = 0; i < n; i++) room += strlen(w[i]) + 1;
    c->values = us_arena_calloc(&c->arena, room, sizeof *c->values);
    c->texts = us_arena_calloc(&c->arena, room, sizeof *c->texts);
    c->args = us_arena_calloc(&c->arena, (size_t)n + 1, sizeof *c->args);
    if (!c->values || !c->texts || !c->args) return us_fail_nomem(err, "reading the command line");
    words in = {w, n, 0};
    us_status s = parse_words(c, &in, err);
    return s == US_OK ? s : (advise(cmd, err), s);
}

void us_cli_close(us_cli *c) {
    us_arena_free(&c->arena);
    us_ctx_free(c->ctx);
    c->ctx = NULL;
}

/* ---- accessors ---- */

/* Index of the last occurrence, or -1; *first = of the first. */
static int last_of(const us_cli *c, const char *name, int *first) {
    const us_option *o = find_long(c->cmd, name, strlen(name));
    int last = -1;
    *first = -1;
    for (int i = 0; i < c->n_values; i++) {
        if (c->values[i].opt != o) continue;
        if (*first < 0) *first = i;
        last = i;
    }
    return last;
}

us_ctx *us_cli_ctx(us_cli *c) {
    return c->ctx;
}

bool us_cli_json(const us_cli *c) {
    return us_cli_flag(c, "json");
}

int us_cli_n_args(const us_cli *c) {
    return c->n_args;
}

const char *us_cli_arg(const us_cli *c, int i) {
    return i >= 0 && i < c->n_args ? c->args[i] : NULL;
}

bool us_cli_flag(const us_cli *c, const char *name) {
    int first, i = last_of(c, name, &first);
    return i >= 0 && !c->values[i].negated;
}

const char *us_cli_string(const us_cli *c, const char *name, const char *def) {
    int first, i = last_of(c, name, &first);
    return i >= 0 ? c->texts[i] : def;
}

int64_t us_cli_int(const us_cli *c, const char *name, int64_t def) {
    const char *text = us_cli_string(c, name, NULL);
    int64_t v = def;
    return text && parse_int(text, &v) ? v : def;
}

double us_cli_double(const us_cli *c, const char *name, double def) {
    const char *text = us_cli_string(c, name, NULL);
    double v = def;
    return text && parse_double(text, &v) ? v : def;
}

const char *const *us_cli_strings(const us_cli *c, const char *name, int *n) {
    int first, last = last_of(c, name, &first);
    *n = last < 0 ? 0 : last - first + 1;
    return c->texts + (first < 0 ? 0 : first);
}

us_status us_cli_usage(us_cli *c, us_err *err, const char *fmt, ...) {
    char text[US_ERR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->usage = true;
    usage(c->cmd, err, "%s", text);
    advise(c->cmd, err);
    return US_E_INVAL;
}

FILE *us_cli_out(us_cli *c) {
    us_progress_clear(); /* what comes is the result, and on a terminal it would stand behind the progress line */
    return c->out;
}

/* ---- running ---- */

static us_ctx *volatile signal_ctx;

static void on_signal(int sig) {
    (void)sig;
    us_ctx *c = signal_ctx;
    if (c) us_ctx_cancel(c);
}

/* The first interrupt asks the job to stop and clean up; SA_RESETHAND lets the second one kill. */
static void catch_signals(us_ctx *ctx) {
    signal_ctx = ctx;
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    a = (struct sigaction){.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &a, NULL); /* a closed pipe is a failed write, which is noticed */
}

/* A file opened later must not take the number of a closed standard stream. Read-only, so that writing to it fails. */
static void open_standard_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDONLY) < 0) return;
}

static void print_error(const us_err *err) {
    char line[4 * US_ERR_TEXT];
    us_err_line(err, line, sizeof line);
    us_progress_clear();
    fflush(stdout); /* what was printed before the failure comes before it */
    fprintf(stderr, "understudy: %s\n", line);
}

static void print_notes(const us_ctx *ctx) {
    for (int i = 0; i < us_ctx_n_notes(ctx); i++) {
        const char *cls = us_ctx_note_class(ctx, i);
        fprintf(stderr, "understudy: note%s%s%s: %s\n", cls[0] ? " [" : "", cls, cls[0] ? "]" : "",
                us_ctx_note(ctx, i));
    }
}

/* Has everything reached standard output? Asked once, at the end: stdio keeps the error. */
static int finish_output(int status) {
    errno = 0;
    bool bad = fflush(stdout) != 0 || ferror(stdout);
    if (!bad) return status;
    if (errno == EPIPE) return status ? status : US_EXIT_FAILED; /* the reader left: nobody to tell */
    us_err err = {0};
    us_fail_sys(&err, errno ? errno : EIO, "output", "cannot write standard output");
    print_error(&err);
    return US_EXIT_FAILED;
}

static int fail(const us_err *err, int status) {
    print_error(err);
    finish_output(0);
    return status;
}

us_status us_cli_print(us_buf *b, FILE *out, us_err *err) {
    us_status s = us_buf_status(b, err, "making the text");
    if (s == US_OK) fwrite(b->p, 1, b->n, out); /* a failure is noticed at the end */
    us_buf_free(b);
    return s;
}

us_status us_cli_page(us_cli *c, void (*make)(us_buf *, const us_command *), us_err *err) {
    const us_command *cmd = NULL;
    if (us_cli_n_args(c) == 1) {
        cmd = us_cli_find(us_cli_arg(c, 0));
        if (!cmd) {
            c->usage = true;
            return us_cli_unknown_command(us_cli_arg(c, 0), err);
        }
    }
    us_buf b = {0};
    make(&b, cmd);
    return us_cli_print(&b, us_cli_out(c), err);
}

static int print_help(const us_command *cmd) {
    us_err err = {0};
    us_buf b = {0};
    us_help_text(&b, cmd);
    if (us_cli_print(&b, stdout, &err) != US_OK) return fail(&err, US_EXIT_FAILED);
    return finish_output(US_EXIT_DONE);
}

static int run_command(us_cli *c) {
    us_err err = {0};
    us_status s = us_ctx_create((int)us_cli_int(c, "threads", 0), (uint64_t)us_cli_int(c, "seed", 0), &c->ctx, &err);
    if (s != US_OK) return fail(&err, US_EXIT_FAILED);
    bool quiet = us_cli_flag(c, "quiet");
    if (!quiet) us_progress_attach(c->ctx);
    catch_signals(c->ctx);
    s = c->cmd->run(c, &err);
    signal_ctx = NULL;
    us_progress_clear();
    if (s != US_OK) {
        if (err.code == US_OK) us_fail(&err, s, NULL, "%s", us_status_text(s)); /* a command that forgot to say why */
        return fail(&err, c->usage ? US_EXIT_USAGE : s == US_E_DIFFERENT ? US_EXIT_NO : US_EXIT_FAILED);
    }
    int status = finish_output(US_EXIT_DONE);
    if (status == US_EXIT_DONE && !quiet) print_notes(c->ctx);
    return status;
}

int us_cli_main(int argc, char **argv) {
    open_standard_streams();
    us_err err = {0};
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        us_fail(&err, US_E_INVAL, "usage", "no command is given");
        us_err_todo(&err, "'understudy help' lists the commands");
        return fail(&err, US_EXIT_USAGE);
    }
    if (strcmp(name, "--version") == 0) {
        printf("understudy %s\n", US_VERSION);
        return finish_output(US_EXIT_DONE);
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) return print_help(NULL);
    const us_command *cmd = us_cli_find(name);
    if (!cmd) {
        us_cli_unknown_command(name, &err);
        return fail(&err, US_EXIT_USAGE);
    }
    us_cli c;
    us_status s = us_cli_parse(&c, cmd, argc - 2, argv + 2, &err);
    int status = s == US_E_NOMEM ? fail(&err, US_EXIT_FAILED)
                 : s != US_OK    ? fail(&err, US_EXIT_USAGE)
                 : c.help        ? print_help(cmd)
                                 : run_command(&c);
    us_cli_close(&c);
    return status;
}

/* One progress line on standard error, only when that is a terminal: share, rate, time left. Tests:
 * tests/unit/test_cli.c. */
#define _DEFAULT_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/frame.h"

static atomic_bool shown; /* a line stands on the terminal */

static void format_time(double seconds, char out[24]) {
    if (!(seconds >= 0) || seconds > 359999) seconds = 359999;
    int s = (int)(seconds + 0.5);
    if (s < 3600)
        snprintf(out, 24, "%d:%02d", s / 60, s % 60);
    else
        snprintf(out, 24, "%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
}

static void format_amount(uint64_t n, const char *unit, char out[24]) {
    if (strcmp(unit, "B") == 0)
        us_format_bytes(n, out);
    else
        us_format_count(n, out);
}

/* Appends, never past cap; returns the new length. */
static size_t put(char *out, size_t cap, size_t n, const char *text) {
    size_t len = strlen(text);
    if (n + len >= cap) len = cap - 1 - n;
    memcpy(out + n, text, len);
    out[n + len] = 0;
    return n + len;
}

static void figures(const us_progress *p, char *out, size_t cap) {
    char done[24], total[24], rate[24], left[24];
    double per_second = p->seconds > 0 ? (double)p->done / p->seconds : 0;
    const char *unit = strcmp(p->unit, "B") == 0 ? "" : p->unit;
    format_amount(p->done, p->unit, done);
    format_amount(per_second < 1e18 ? (uint64_t)per_second : 0, p->unit, rate);
    if (p->total == 0) {
        snprintf(out, cap, " %s%s%s  %s/s", done, unit[0] ? " " : "", unit, rate);
        return;
    }
    format_amount(p->total, p->unit, total);
    double rest = p->done < p->total ? (double)(p->total - p->done) : 0;
    if (per_second > 0)
        format_time(rest / per_second, left);
    else
        snprintf(left, sizeof left, "-:--");
    snprintf(out, cap, " %3.0f%%  %s of %s%s%s  %s/s  %s left", 100.0 * (1 - rest / (double)p->total), done, total,
             unit[0] ? " " : "", unit, rate, left);
}

void us_progress_line(const us_progress *p, int width, bool color, char *out, size_t cap) {
    char tail[160];
    figures(p, tail, sizeof tail);
    size_t room = width > 1 ? (size_t)width - 1 : 0; /* the last column stays free: some terminals wrap there */
    size_t fixed = strlen(p->what) + strlen(tail), n = 0;
    out[0] = 0;
    if (room + 1 > cap) room = cap - 1;
    size_t bar = p->total && room > fixed + 12 ? (room - fixed - 3 < 30 ? room - fixed - 3 : 30) : 0;
    n = put(out, room + 1, n, p->what);
    if (bar) {
        double share = p->done < p->total ? (double)p->done / (double)p->total : 1;
        size_t full = (size_t)(share * (double)bar + 0.5);
        n = put(out, cap, n, color ? " \033[32m[" : " [");
        for (size_t i = 0; i < bar; i++) n = put(out, cap, n, i < full ? "#" : ".");
        n = put(out, cap, n, color ? "]\033[0m" : "]");
        put(out, cap, n, tail);
        return;
    }
    put(out, room + 1, n, tail);
}

static int terminal_width(void) {
    struct winsize w;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0) return w.ws_col;
    return 80;
}

static void show(void *user, const us_progress *p) {
    (void)user;
    char line[512], text[544];
    const char *no_color = getenv("NO_COLOR");
    us_progress_line(p, terminal_width(), !(no_color && no_color[0]), line, sizeof line);
    int n = snprintf(text, sizeof text, "\r%s\033[K", line);
    atomic_store(&shown, true);
    if (n > 0 && write(STDERR_FILENO, text, (size_t)n) < 0) return; /* a lost progress line is no failure */
}

void us_progress_attach(us_ctx *ctx) {
    const char *term = getenv("TERM");
    if (!isatty(STDERR_FILENO) || (term && strcmp(term, "dumb") == 0)) return;
    us_ctx_on_progress(ctx, show, NULL);
}

void us_progress_clear(void) {
    if (!atomic_exchange(&shown, false)) return;
    if (write(STDERR_FILENO, "\r\033[K", 4) < 0) return;
}

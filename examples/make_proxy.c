/*
 * The library from outside: make a proxy with 8 experts a layer and prove it. Only public headers are used.
 *
 *     cc make_proxy.c $(pkg-config --cflags --libs understudy) -o make_proxy
 *     ./make_proxy SRC DST
 */
#include <stdio.h>
#include <understudy/understudy.h>

static int fail(const us_err *err) {
    char line[4 * US_ERR_TEXT];
    us_err_line(err, line, (int)sizeof line);
    fprintf(stderr, "make_proxy: %s\n", line);
    return 1;
}

static int make_and_verify(us_ctx *ctx, const char *src, const char *dst, us_err *err) {
    const int64_t sizes[] = {8};
    us_proxy_request request = {.src = src, .dst = dst, .sizes = sizes, .n_sizes = 1};
    us_report *report;
    if (us_proxy_make(ctx, &request, &report, err) != US_OK) return fail(err);
    fputs(us_report_text(report), stdout);
    us_report_free(report);

    us_verify_request verify = {.src = src, .dst = dst};
    if (us_proxy_verify(ctx, &verify, &report, err) != US_OK) return fail(err);
    puts("verified");
    us_report_free(report);
    return 0;
}

int main(int argc, char **argv) {
    us_err err = {0};
    us_ctx *ctx;
    if (argc != 3) {
        fprintf(stderr, "usage: make_proxy SRC DST\n");
        return 2;
    }
    if (us_ctx_create(0, 0, &ctx, &err) != US_OK) return fail(&err);
    int status = make_and_verify(ctx, argv[1], argv[2], &err);
    for (int i = 0; i < us_ctx_n_notes(ctx); i++) fprintf(stderr, "note: %s\n", us_ctx_note(ctx, i));
    us_ctx_free(ctx);
    return status;
}

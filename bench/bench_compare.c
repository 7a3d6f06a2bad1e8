/*
 * bench_compare OLD.json NEW.json: cases of both files side by side. A change counts when it is larger than both
 * spreads together and than 2 %. Exit status 0: nothing slower; 3: something is; 1: a file cannot be read.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/fs.h"
#include "io/json.h"

static us_status load(const char *path, us_json_doc *d, us_err *err) {
    char *text;
    size_t n;
    US_TRY(us_fs_read_all(path, 64 << 20, &text, &n, err));
    us_status s = us_json_doc_take(d, text, n, 0, err);
    return s == US_OK ? s : us_err_where(err, "%s", path);
}

/* The case of that topic and name, or US_JSON_NO. */
static us_json_ref find(const us_json_doc *d, us_str topic, us_str name) {
    us_json_ref results = us_json_get(d, 0, "results");
    for (us_json_ref r = us_json_first(d, results); r != US_JSON_NO; r = us_json_next(d, results, r)) {
        if (!us_str_eq(us_json_string(d, us_json_get(d, r, "topic")), topic)) continue;
        us_json_ref cases = us_json_get(d, r, "cases");
        for (us_json_ref c = us_json_first(d, cases); c != US_JSON_NO; c = us_json_next(d, cases, c))
            if (us_str_eq(us_json_string(d, us_json_get(d, c, "name")), name)) return c;
    }
    return US_JSON_NO;
}

static int compare_case(const us_json_doc *a, us_json_ref x, const us_json_doc *b, us_json_ref y, us_str topic,
                        us_str name) {
    double old, now, old_spread = 0, new_spread = 0;
    bool timed = us_json_double(a, us_json_get(a, x, "median_s"), &old) &&
                 us_json_double(b, us_json_get(b, y, "median_s"), &now);
    if (!timed &&
        !(us_json_double(a, us_json_get(a, x, "value"), &old) && us_json_double(b, us_json_get(b, y, "value"), &now)))
        return 0;
    us_json_double(a, us_json_get(a, x, "spread"), &old_spread);
    us_json_double(b, us_json_get(b, y, "spread"), &new_spread);
    double change = old > 0 ? now / old - 1 : 0, noise = old_spread + new_spread;
    if (noise < 0.02) noise = 0.02;
    const char *mark = change > noise ? "  MORE" : change < -noise ? "  less" : "";
    printf("  %-10.*s %-44.*s %10.4g -> %10.4g  %+6.1f%% (noise %.1f%%)%s\n", US_STR_ARG(topic), US_STR_ARG(name), old,
           now, 100 * change, 100 * noise, mark);
    return change > noise;
}

static int compare(const us_json_doc *a, const us_json_doc *b) {
    int more = 0, both = 0;
    us_json_ref results = us_json_get(b, 0, "results");
    for (us_json_ref r = us_json_first(b, results); r != US_JSON_NO; r = us_json_next(b, results, r)) {
        us_str topic = us_json_string(b, us_json_get(b, r, "topic"));
        us_json_ref cases = us_json_get(b, r, "cases");
        for (us_json_ref c = us_json_first(b, cases); c != US_JSON_NO; c = us_json_next(b, cases, c)) {
            us_str name = us_json_string(b, us_json_get(b, c, "name"));
            us_json_ref old = find(a, topic, name);
            if (old == US_JSON_NO) continue;
            both++;
            more += compare_case(a, old, b, c, topic, name);
        }
    }
    printf("%d cases in both files, %d with more time or a larger figure\n", both, more);
    return more ? 3 : 0;
}

int main(int argc, char **argv) {
    us_json_doc a = {0}, b = {0};
    us_err err = {0};
    if (argc != 3) {
        fprintf(stderr, "usage: bench_compare OLD.json NEW.json\n");
        return 2;
    }
    int status = 1;
    if (load(argv[1], &a, &err) == US_OK && load(argv[2], &b, &err) == US_OK) {
        status = compare(&a, &b);
    } else {
        char line[4 * US_ERR_TEXT];
        us_err_line(&err, line, sizeof line);
        fprintf(stderr, "bench_compare: %s\n", line);
    }
    us_json_doc_free(&a);
    us_json_doc_free(&b);
    return status;
}

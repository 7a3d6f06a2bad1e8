/* Fuzz target: the JSON scanner, the document on top of it, and edits. What must hold is checked, not only that nothing
 * crashes. */
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

/* The scanner and the document accept the same texts, duplicate keys apart. */
static us_status scan(us_str text, unsigned flags) {
    us_json_scan s;
    us_json_token t;
    us_err err = {0};
    us_buf buf = {0};
    us_json_scan_init(&s, text, flags);
    us_status status;
    size_t last = 0;
    do {
        status = us_json_scan_next(&s, &t, &err);
        if (status != US_OK || t.event == US_JSON_EV_DONE) break;
        require(t.begin >= last && t.end <= text.n && t.begin < t.end);
        last = t.event == US_JSON_EV_BEGIN ? t.begin : t.end;
        us_str out;
        if (t.type == US_JSON_STRING && (t.event == US_JSON_EV_VALUE || t.event == US_JSON_EV_KEY)) {
            require(us_json_scan_string(&s, &t, &buf, &out, &err) == US_OK);
            require(us_utf8_valid(out.p ? out.p : "", out.n, NULL));
        }
    } while (true);
    us_buf_free(&buf);
    return status;
}

/* Replacing every scalar by its own text changes nothing. */
static void edit_to_itself(const us_json_doc *d) {
    us_json_edit *edits = us_malloc((d->n_nodes + (size_t)1) * sizeof *edits);
    size_t n = 0;
    for (uint32_t i = 0; edits && i < d->n_nodes; i++) {
        us_json_type type = us_json_type_of(d, i);
        if (type == US_JSON_ARRAY || type == US_JSON_OBJECT) continue;
        edits[n++] = (us_json_edit){d->nodes[i].begin, d->nodes[i].end, us_json_raw(d, i)};
    }
    us_buf out = {0};
    us_err err = {0};
    if (edits) {
        require(us_json_apply(d->text, edits, n, &out, &err) == US_OK);
        require(us_str_eq(us_buf_view(&out), d->text));
    }
    us_buf_free(&out);
    us_free(edits);
}

static void read_all(const us_json_doc *d) {
    for (uint32_t i = 0; i < d->n_nodes; i++) {
        uint64_t u;
        int64_t s;
        double f;
        bool b;
        us_str text = us_json_string(d, i);
        require(text.p == NULL || us_utf8_valid(text.p, text.n, NULL));
        if (us_json_u64(d, i, &u)) require(us_json_double(d, i, &f) && f >= 0);
        us_json_i64(d, i, &s);
        us_json_bool(d, i, &b);
        uint32_t children = 0;
        for (us_json_ref c = us_json_first(d, i); c != US_JSON_NO; c = us_json_next(d, i, c)) children++;
        require(children == (us_json_type_of(d, i) == US_JSON_OBJECT ? 2 : 1) * us_json_count(d, i));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    unsigned flags = data[0] & US_JSON_INFINITY; /* the first byte chooses the flags */
    us_str text = {(const char *)data + 1, size - 1};
    uint64_t live = us_alloc_get_stats().live_blocks;
    us_json_doc d;
    us_err err = {0};
    us_status s = us_json_doc_parse(&d, text, flags, &err);
    us_status t = us_utf8_valid(text.p, text.n, NULL) ? scan(text, flags) : US_E_FORMAT;
    require(s == t || (s == US_E_FORMAT && strcmp(err.cls, "duplicate-key") == 0));
    require(s == US_OK || (err.cls[0] && err.what[0]));
    if (s == US_OK) {
        read_all(&d);
        edit_to_itself(&d);
        us_json_doc_free(&d);
    }
    require(us_alloc_get_stats().live_blocks == live);
    return 0;
}

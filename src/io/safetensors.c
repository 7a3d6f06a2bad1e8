/* Strict safetensors header reader on the pull scanner, and the header writer. See safetensors.h for the rules. */
#include "io/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "io/json.h"

enum { NUMBER_MAX_LOG2 = 53 };

typedef struct parser {
    us_json_scan scan;
    us_json_token t;
    us_buf text; /* unescaped string of the token at hand */
    us_st_header *h;
    us_map names; /* top-level keys */
    size_t cap_tensors, cap_meta;
    us_err *err;
} parser;

static us_status fault(parser *p, const char *cls, const char *what) {
    us_fail(p->err, US_E_FORMAT, cls, "%s", what);
    us_err_where(p->err, "header byte %zu", p->t.begin);
    if (p->err) p->err->offset = 8 + p->t.begin;
    return US_E_FORMAT;
}

static us_status tensor_fault(parser *p, us_str name, const char *cls, const char *what) {
    us_fail(p->err, US_E_FORMAT, cls, "%s", what);
    us_err_where(p->err, "tensor \"%.*s\"", US_STR_ARG(name));
    return US_E_FORMAT;
}

static us_status next(parser *p) {
    us_status s = us_json_scan_next(&p->scan, &p->t, p->err);
    if (s == US_OK || !p->err) return s;
    const char *cls = strcmp(p->err->cls, "trailing") == 0 ? "header-trailing" : strcmp(p->err->cls, "depth") == 0 ? "limit" : "header-json";
    memcpy(p->err->cls, cls, strlen(cls) + 1);
    us_err_where(p->err, "header");
    return s;
}

/* The string of the token at hand, kept in the arena. */
static us_status keep_string(parser *p, us_str *out) {
    us_str s;
    US_TRY(us_json_scan_string(&p->scan, &p->t, &p->text, &s, p->err));
    char *copy = us_arena_strndup(&p->h->arena, s.p, s.n);
    if (!copy) return us_fail_nomem(p->err, "reading a safetensors header");
    *out = (us_str){copy, s.n};
    return US_OK;
}

static us_status read_number(parser *p, uint64_t *out) {
    if (p->t.event != US_JSON_EV_VALUE || p->t.type != US_JSON_NUMBER) return fault(p, "field-type", "an integer is expected");
    us_str raw = {p->scan.text + p->t.begin, p->t.end - p->t.begin};
    if (!us_json_text_u64(raw, out) || *out > (uint64_t)1 << NUMBER_MAX_LOG2)
        return fault(p, "number", "a number is not a plain integer from 0 to 2^53");
    return US_OK;
}

static us_status read_shape(parser *p, us_st_tensor *t) {
    uint64_t dims[US_ST_RANK_MAX];
    int n = 0;
    US_TRY(next(p));
    if (p->t.event != US_JSON_EV_BEGIN || p->t.type != US_JSON_ARRAY) return fault(p, "field-type", "\"shape\" must be an array");
    for (;;) {
        US_TRY(next(p));
        if (p->t.event == US_JSON_EV_END) break;
        if (n == US_ST_RANK_MAX) return fault(p, "limit", "a tensor has more than 64 dimensions");
        US_TRY(read_number(p, &dims[n++]));
    }
    uint64_t *copy = us_arena_alloc(&p->h->arena, (size_t)n * sizeof *copy);
    if (!copy) return us_fail_nomem(p->err, "reading a safetensors header");
    if (n > 0) memcpy(copy, dims, (size_t)n * sizeof *copy);
    t->shape = copy;
    t->rank = (uint8_t)n;
    return US_OK;
}

static us_status read_offsets(parser *p, us_st_tensor *t) {
    US_TRY(next(p));
    if (p->t.event != US_JSON_EV_BEGIN || p->t.type != US_JSON_ARRAY) return fault(p, "field-type", "\"data_offsets\" must be an array");
    US_TRY(next(p));
    if (p->t.event == US_JSON_EV_END) return fault(p, "field-type", "\"data_offsets\" must hold two numbers");
    US_TRY(read_number(p, &t->begin));
    US_TRY(next(p));
    if (p->t.event == US_JSON_EV_END) return fault(p, "field-type", "\"data_offsets\" must hold two numbers");
    US_TRY(read_number(p, &t->end));
    US_TRY(next(p));
    if (p->t.event != US_JSON_EV_END) return fault(p, "field-type", "\"data_offsets\" must hold two numbers");
    return US_OK;
}

static us_status read_dtype(parser *p, us_st_tensor *t) {
    us_str s;
    US_TRY(next(p));
    if (p->t.event != US_JSON_EV_VALUE || p->t.type != US_JSON_STRING) return fault(p, "field-type", "\"dtype\" must be a string");
    US_TRY(us_json_scan_string(&p->scan, &p->t, &p->text, &s, p->err));
    if (!us_dtype_parse(s, &t->dtype)) return fault(p, "dtype-unknown", "an element type is not one of the format's");
    return US_OK;
}

bool us_st_bytes(us_dtype type, int rank, const uint64_t *shape, uint64_t *elements, uint64_t *bytes) {
    uint64_t n = 1, bits;
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(n, shape[i], &n)) return false;
    if (__builtin_mul_overflow(n, (uint64_t)us_dtype_bits(type), &bits) || bits % 8) return false;
    *elements = n;
    *bytes = bits / 8;
    return true;
}

uint64_t us_st_elements(const us_st_tensor *t) {
    uint64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

static us_status check_tensor(parser *p, const us_st_tensor *t) {
    uint64_t n = 1, bits;
    for (int i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(n, t->shape[i], &n)) return tensor_fault(p, t->name, "shape-overflow", "the product of the shape does not fit 64 bits");
    if (__builtin_mul_overflow(n, (uint64_t)us_dtype_bits(t->dtype), &bits))
        return tensor_fault(p, t->name, "shape-overflow", "the size in bits does not fit 64 bits");
    if (bits % 8) return tensor_fault(p, t->name, "subbyte", "the elements do not fill whole bytes");
    if (t->begin > t->end) return tensor_fault(p, t->name, "offset-order", "data_offsets end before they begin");
    if (t->end - t->begin != bits / 8) {
        us_fail(p->err, US_E_FORMAT, "size-mismatch", "shape and type want %llu bytes, data_offsets hold %llu", (unsigned long long)(bits / 8),
                (unsigned long long)(t->end - t->begin));
        us_err_where(p->err, "tensor \"%.*s\"", US_STR_ARG(t->name));
        return US_E_FORMAT;
    }
    return US_OK;
}

static us_status read_tensor(parser *p, us_str name) {
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    us_st_tensor t = {.name = name};
    unsigned seen = 0;
    US_TRY(next(p));
    if (p->t.event != US_JSON_EV_BEGIN || p->t.type != US_JSON_OBJECT) return fault(p, "field-type", "a tensor must be an object");
    for (;;) {
        US_TRY(next(p));
        if (p->t.event == US_JSON_EV_END) break;
        us_str key;
        US_TRY(us_json_scan_string(&p->scan, &p->t, &p->text, &key, p->err));
        unsigned bit = us_str_eqz(key, "dtype") ? DTYPE : us_str_eqz(key, "shape") ? SHAPE : us_str_eqz(key, "data_offsets") ? OFFSETS : 0;
        if (!bit) return tensor_fault(p, name, "field-extra", "a tensor has a field that the format does not know");
        if (seen & bit) return tensor_fault(p, name, "duplicate-key", "a field stands twice in a tensor");
        seen |= bit;
        US_TRY(bit == DTYPE ? read_dtype(p, &t) : bit == SHAPE ? read_shape(p, &t) : read_offsets(p, &t));
    }
    if (seen != (DTYPE | SHAPE | OFFSETS)) return tensor_fault(p, name, "field-missing", "a tensor lacks dtype, shape or data_offsets");
    US_TRY(check_tensor(p, &t));
    if (!us_grow(&p->h->tensors, &p->cap_tensors, p->h->n_tensors + 1, sizeof t)) return us_fail_nomem(p->err, "reading a safetensors header");
    p->h->tensors[p->h->n_tensors++] = t;
    return US_OK;
}

static us_status read_metadata(parser *p) {
    us_map keys = {0};
    us_status s = next(p);
    p->h->has_meta = true;
    if (s == US_OK && (p->t.event != US_JSON_EV_BEGIN || p->t.type != US_JSON_OBJECT)) s = fault(p, "metadata-type", "\"__metadata__\" must be an object");
    while (s == US_OK) {
        us_st_meta m;
        uint32_t old;
        US_GO(next(p));
        if (p->t.event == US_JSON_EV_END) break;
        US_GO(keep_string(p, &m.key));
        if (!us_map_put(&keys, m.key, 0, &old)) s = us_fail_nomem(p->err, "reading a safetensors header");
        else if (old != US_MAP_NONE) s = fault(p, "duplicate-key", "a key stands twice in \"__metadata__\"");
        if (s != US_OK) goto done;
        US_GO(next(p));
        if (p->t.event != US_JSON_EV_VALUE || p->t.type != US_JSON_STRING) {
            s = fault(p, "metadata-type", "\"__metadata__\" must hold strings only");
            goto done;
        }
        US_GO(keep_string(p, &m.value));
        if (!us_grow(&p->h->meta, &p->cap_meta, p->h->n_meta + 1, sizeof m)) s = us_fail_nomem(p->err, "reading a safetensors header");
        else p->h->meta[p->h->n_meta++] = m;
    }
done:
    us_map_free(&keys);
    return s;
}

static us_status check_name(parser *p, us_str name) {
    if (name.n == 0) return fault(p, "name", "a tensor has an empty name");
    if (name.n > US_ST_NAME_MAX) return fault(p, "limit", "a name has more than 4096 bytes");
    for (size_t i = 0; i < name.n; i++) {
        unsigned char c = (unsigned char)name.p[i];
        bool c1 = c == 0xc2 && i + 1 < name.n && (unsigned char)name.p[i + 1] < 0xa0;
        if (c < 0x20 || c == 0x7f || c1) return fault(p, "name", "a name has a control character");
    }
    return US_OK;
}

static us_status read_entry(parser *p) {
    us_str name;
    uint32_t old;
    size_t length = p->t.end - p->t.begin - 2;
    if (!p->t.escaped && length > US_ST_NAME_MAX) return fault(p, "limit", "a name has more than 4096 bytes");
    US_TRY(keep_string(p, &name));
    if (!us_map_put(&p->names, name, 0, &old)) return us_fail_nomem(p->err, "reading a safetensors header");
    if (old != US_MAP_NONE) return fault(p, "duplicate-key", "a name stands twice");
    if (us_str_eqz(name, "__metadata__")) return read_metadata(p);
    US_TRY(check_name(p, name));
    return read_tensor(p, name);
}

/* ---- offsets ---- */

static int by_offset(const void *a, const void *b) {
    const us_st_tensor *x = *(const us_st_tensor *const *)a, *y = *(const us_st_tensor *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static us_status check_ranges(parser *p, us_st_tensor *const *sorted, unsigned flags) {
    const us_st_header *h = p->h;
    uint64_t at = 0;
    for (size_t i = 0; i < h->n_tensors && !(flags & US_ST_HEADERS_ONLY); i++)
        if (sorted[i]->end > h->data_size) {
            us_fail(p->err, US_E_FORMAT, "offset-range", "the file is too short: %llu bytes of data are missing",
                    (unsigned long long)(sorted[h->n_tensors - 1]->end > sorted[i]->end ? sorted[h->n_tensors - 1]->end - h->data_size : sorted[i]->end - h->data_size));
            us_err_where(p->err, "first tensor that is cut: \"%.*s\"", US_STR_ARG(sorted[i]->name));
            us_err_todo(p->err, "fetch the file again");
            return US_E_FORMAT;
        }
    for (size_t i = 0; i < h->n_tensors; i++) {
        if (sorted[i]->begin > at) return tensor_fault(p, sorted[i]->name, "offset-gap", "there is a gap before the data of a tensor");
        if (sorted[i]->begin < at) return tensor_fault(p, sorted[i]->name, "offset-overlap", "the data of a tensor overlap another's");
        at = sorted[i]->end;
    }
    if (at >= h->data_size) return US_OK;
    unsigned long long stray = (unsigned long long)(h->data_size - at), end = (unsigned long long)(h->data_start + at);
    us_fail(p->err, US_E_FORMAT, "trailing-data", "%llu bytes follow the last tensor", stray);
    us_err_where(p->err, "byte %llu", end);
    us_err_todo(p->err, "cut them off: truncate -s %llu FILE", end);
    return US_E_FORMAT;
}

static us_status check_offsets(parser *p, unsigned flags) {
    us_st_tensor **sorted = us_malloc((p->h->n_tensors + 1) * sizeof(us_st_tensor *));
    if (!sorted) return us_fail_nomem(p->err, "checking a safetensors header");
    bool in_order = true;
    for (size_t i = 0; i < p->h->n_tensors; i++) {
        sorted[i] = &p->h->tensors[i];
        if (i > 0 && by_offset(&sorted[i - 1], &sorted[i]) > 0) in_order = false;
    }
    if (!in_order) qsort(sorted, p->h->n_tensors, sizeof *sorted, by_offset);
    us_status s = check_ranges(p, sorted, flags);
    us_free(sorted);
    return s;
}

/* ---- entry points ---- */

static us_status check_start(us_str header, us_err *err) {
    size_t bad, i = 0;
    if (!us_utf8_valid(header.p, header.n, &bad)) {
        us_fail(err, US_E_FORMAT, "header-utf8", "the header is not valid UTF-8");
        us_err_where(err, "header byte %zu", bad);
        return US_E_FORMAT;
    }
    if (header.p[0] == '{') return US_OK;
    while (i < header.n && (header.p[i] == ' ' || header.p[i] == '\n' || header.p[i] == '\t' || header.p[i] == '\r')) i++;
    bool nothing = i == header.n || header.p[i] == 0;
    return us_fail(err, US_E_FORMAT, nothing ? "header-json" : "header-start", "the header does not start with '{'");
}

us_status us_st_parse(us_str header, uint64_t file_size, unsigned flags, us_st_header *out, us_err *err) {
    us_st_header h = {.data_start = 8 + header.n};
    parser p = {.h = &h, .err = err};
    us_status s = US_OK;
    if (header.n == 0 || header.n > US_ST_HEADER_MAX || file_size < h.data_start)
        return us_fail(err, US_E_FORMAT, "header-length", "the header's length does not fit the file");
    h.data_size = file_size - h.data_start;
    US_GO(check_start(header, err));
    us_json_scan_init(&p.scan, header, 0);
    US_GO(next(&p));
    for (;;) {
        US_GO(next(&p));
        if (p.t.event == US_JSON_EV_END) break;
        US_GO(read_entry(&p));
    }
    US_GO(next(&p)); /* nothing but white space may follow */
    us_map_free(&p.names);
    US_GO(check_offsets(&p, flags));
done:
    us_map_free(&p.names);
    us_buf_free(&p.text);
    if (s == US_OK) *out = h;
    else us_st_header_free(&h);
    return s;
}

us_status us_st_read(const us_file *f, unsigned flags, us_st_header *out, us_err *err) {
    unsigned char raw[8];
    char *header = NULL;
    us_status s = US_OK;
    if (f->size < 8) {
        s = us_fail(err, US_E_FORMAT, "short-file", "a safetensors file has at least 8 bytes, this one has %llu", (unsigned long long)f->size);
        goto done;
    }
    US_GO(us_file_read(f, 0, raw, 8, err));
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | raw[i];
    if (n == 0 || n > f->size - 8) {
        s = us_fail(err, US_E_FORMAT, "header-length", "the header's length of %llu does not fit the file", (unsigned long long)n);
        us_err_todo(err, "is it a safetensors file, and whole?");
        goto done;
    }
    if (n > US_ST_HEADER_MAX) {
        s = us_fail(err, US_E_LIMIT, "header-length", "a header of %llu bytes is above the format's limit of %d", (unsigned long long)n, US_ST_HEADER_MAX);
        us_err_todo(err, "the reference library refuses it too: split the file into shards");
        goto done;
    }
    header = us_malloc((size_t)n);
    if (!header) s = us_fail_nomem(err, "reading a safetensors header");
    else s = us_file_read(f, 8, header, (size_t)n, err);
    if (s == US_OK) s = us_st_parse((us_str){header, (size_t)n}, f->size, flags, out, err);
done:
    us_free(header);
    if (s != US_OK && err && !strstr(err->where, f->path)) us_err_where(err, "%s", f->path);
    return s;
}

void us_st_header_free(us_st_header *h) {
    us_free(h->tensors);
    us_free(h->meta);
    us_arena_free(&h->arena);
    *h = (us_st_header){0};
}

us_status us_st_write_header(us_buf *out, const us_st_tensor *tensors, size_t n, const us_st_meta *meta, size_t n_meta, us_err *err) {
    size_t start = out->n;
    bool format = false;
    static const char zeros[8];
    us_buf_add(out, zeros, 8);
    us_buf_z(out, "{\"__metadata__\":{");
    for (size_t i = 0; i < n_meta; i++) {
        if (i) us_buf_c(out, ',');
        format |= us_str_eqz(meta[i].key, "format");
        us_buf_json(out, meta[i].key);
        us_buf_c(out, ':');
        us_buf_json(out, meta[i].value);
    }
    if (!format) us_buf_z(out, n_meta ? ",\"format\":\"pt\"" : "\"format\":\"pt\"");
    us_buf_c(out, '}');
    for (size_t i = 0; i < n; i++) {
        us_buf_c(out, ',');
        us_buf_json(out, tensors[i].name);
        us_buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", us_dtype_name(tensors[i].dtype));
        for (int d = 0; d < tensors[i].rank; d++) us_buf_printf(out, d ? ",%llu" : "%llu", (unsigned long long)tensors[i].shape[d]);
        us_buf_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)tensors[i].begin, (unsigned long long)tensors[i].end);
    }
    us_buf_c(out, '}');
    while (!out->failed && (out->n - start) % 8) us_buf_c(out, ' ');
    US_TRY(us_buf_status(out, err, "writing a safetensors header"));
    uint64_t length = out->n - start - 8;
    if (length > US_ST_HEADER_MAX) return us_fail(err, US_E_LIMIT, "header-length", "a header of %llu bytes is above the format's limit", (unsigned long long)length);
    for (int i = 0; i < 8; i++) out->p[start + (size_t)i] = (char)(unsigned char)(length >> (8 * i) & 255);
    return US_OK;
}

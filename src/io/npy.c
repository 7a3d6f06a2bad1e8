/* NumPy arrays: a small header grammar, strict zip reading, streaming so that a bomb needs no memory. See npy.h. */
#include "io/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/map.h"
#include "io/fs.h"

enum { HEADER_MAX = 10000, MEMBERS_MAX = 65536, NAME_MAX_BYTES = 1024, CHUNK = 65536 };
#define FILE_MAX ((size_t)1 << 36)
enum { DEFLATE_MAX = 1032 }; /* bytes out of one byte of deflate at most: 258 for two bits */

/* ---- the header of one array ---- */

typedef struct py { /* a Python literal being read */
    const char *p;
    size_t n, at;
} py;

static void space(py *s) {
    while (s->at < s->n && (s->p[s->at] == ' ' || s->p[s->at] == '\t' || s->p[s->at] == '\n' || s->p[s->at] == '\r')) s->at++;
}

static bool take(py *s, char c) {
    space(s);
    if (s->at >= s->n || s->p[s->at] != c) return false;
    s->at++;
    return true;
}

static bool take_string(py *s, us_str *out) {
    space(s);
    if (s->at >= s->n || (s->p[s->at] != '\'' && s->p[s->at] != '"')) return false;
    char quote = s->p[s->at++];
    size_t start = s->at;
    while (s->at < s->n && s->p[s->at] != quote && s->p[s->at] != '\\' && s->p[s->at] != '\n') s->at++;
    if (s->at >= s->n || s->p[s->at] != quote) return false;
    *out = (us_str){s->p + start, s->at++ - start};
    return true;
}

static bool take_word(py *s, const char *word) {
    space(s);
    size_t n = strlen(word);
    if (s->n - s->at < n || memcmp(s->p + s->at, word, n) != 0) return false;
    s->at += n;
    return true;
}

static us_status fault(us_err *err, const char *cls, const char *what) {
    return us_fail(err, US_E_FORMAT, cls, "%s", what);
}

typedef struct head { /* a parsed header */
    bool fortran, swap;
    unsigned item; /* bytes an element */
} head;

static us_status read_descr(py *s, us_npy *a, head *h, us_err *err) {
    static const struct {
        const char *code;
        us_dtype type;
    } types[] = {{"b1", US_DTYPE_BOOL}, {"i1", US_DTYPE_I8},  {"i2", US_DTYPE_I16}, {"i4", US_DTYPE_I32}, {"i8", US_DTYPE_I64}, {"u1", US_DTYPE_U8},
                 {"u2", US_DTYPE_U16},  {"u4", US_DTYPE_U32}, {"u8", US_DTYPE_U64}, {"f2", US_DTYPE_F16}, {"f4", US_DTYPE_F32}, {"f8", US_DTYPE_F64}};
    us_str d;
    space(s);
    if (s->at < s->n && (s->p[s->at] == '[' || s->p[s->at] == '(')) return fault(err, "dtype", "record types are not read");
    if (s->at < s->n && s->p[s->at] >= '0' && s->p[s->at] <= '9') return fault(err, "dtype", "descr is a number, not a type");
    if (!take_string(s, &d)) return fault(err, "header", "descr is not a string");
    if (d.n == 3 && strchr("<>|=", d.p[0])) {
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            if (memcmp(d.p + 1, types[i].code, 2) == 0) {
                a->dtype = types[i].type;
                h->item = us_dtype_bits(a->dtype) / 8;
                h->swap = d.p[0] == '>' && h->item > 1;
                if (d.p[0] == '|' && h->item > 1) break;
                return US_OK;
            }
    }
    return us_fail(err, US_E_FORMAT, "dtype", "arrays of type \"%.*s\" are not read (numbers and booleans only)", US_STR_ARG(us_str_sub(d, 0, 40)));
}

/* Not a plain integer: a literal of another kind is a bad shape, anything else no literal at all. */
static us_status bad_dimension(const py *s, us_err *err) {
    char c = s->at < s->n ? s->p[s->at] : 0;
    if (c && strchr("-'\"[.,TFN)", c)) return fault(err, "shape", "a dimension is not a plain non-negative integer");
    return fault(err, "header", "shape is not a tuple of integers");
}

static us_status read_shape(py *s, us_npy *a, us_err *err) {
    if (!take(s, '(')) {
        char c = s->at < s->n ? s->p[s->at] : 0;
        bool literal = c && strchr("0123456789['\"-{TFN", c);
        return fault(err, literal ? "shape" : "header", "shape is not a tuple");
    }
    for (;;) {
        if (take(s, ')')) return US_OK;
        space(s);
        size_t start = s->at;
        while (s->at < s->n && s->p[s->at] >= '0' && s->p[s->at] <= '9') s->at++;
        uint64_t v;
        if (!us_str_to_u64((us_str){s->p + start, s->at - start}, &v)) {
            if (s->at > start) return fault(err, "shape", "a dimension does not fit 64 bits, or has leading zeros");
            return bad_dimension(s, err);
        }
        if (a->rank == US_NPY_RANK_MAX) return fault(err, "limit", "an array has more than 32 dimensions");
        a->shape[a->rank++] = v;
        if (take(s, ',')) continue;
        space(s);
        if (s->at < s->n && s->p[s->at] == ')' && a->rank == 1) return fault(err, "shape", "shape is not a tuple");
        if (!take(s, ')')) return bad_dimension(s, err);
        return US_OK;
    }
}

static us_status read_dict(us_str text, us_npy *a, head *h, us_err *err) {
    enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
    py s = {text.p, text.n, 0};
    unsigned seen = 0;
    if (!take(&s, '{')) return fault(err, "header", "the header is not a dictionary");
    while (!take(&s, '}')) {
        us_str key;
        if (!take_string(&s, &key) || !take(&s, ':')) return fault(err, "header", "the header is not a plain dictionary");
        unsigned bit = us_str_eqz(key, "descr") ? DESCR : us_str_eqz(key, "fortran_order") ? ORDER : us_str_eqz(key, "shape") ? SHAPE : 0;
        if (!bit) return fault(err, "header", "the header has a key that the format does not know");
        if (seen & bit) return fault(err, "header", "the header has a key twice");
        seen |= bit;
        if (bit == DESCR) US_TRY(read_descr(&s, a, h, err));
        if (bit == SHAPE) US_TRY(read_shape(&s, a, err));
        if (bit == ORDER) {
            h->fortran = take_word(&s, "True");
            if (!h->fortran && !take_word(&s, "False")) return fault(err, "header", "fortran_order is neither True nor False");
        }
        if (take(&s, ',')) continue;
        if (!take(&s, '}')) return fault(err, "header", "the header is not a plain dictionary");
        break;
    }
    space(&s);
    if (s.at != s.n) return fault(err, "header", "something follows the header's dictionary");
    if (seen != (DESCR | ORDER | SHAPE)) return fault(err, "header", "the header lacks descr, fortran_order or shape");
    return US_OK;
}

/* Bytes of the whole header when the first n bytes are known; 0 = need more. */
static us_status header_length(const unsigned char *p, size_t n, uint64_t total, size_t *length, us_err *err) {
    static const unsigned char magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
    *length = 0;
    if (memcmp(p, magic, n < 6 ? n : 6) != 0) return fault(err, "magic", "not a NumPy array");
    if (n < 8) return US_OK;
    if (p[6] < 1 || p[6] > 3 || p[7] != 0) return us_fail(err, US_E_FORMAT, "version", "version %u.%u of the format is not known", p[6], p[7]);
    size_t prefix = p[6] == 1 ? 10 : 12;
    if (n < prefix) return US_OK;
    uint64_t size = p[8] | (uint64_t)p[9] << 8;
    if (p[6] > 1) size |= (uint64_t)p[10] << 16 | (uint64_t)p[11] << 24;
    if (prefix + size > total) return fault(err, "truncated", "the file ends inside the header");
    if (size > HEADER_MAX) return us_fail(err, US_E_LIMIT, "limit", "a header of %llu bytes is above the limit of %d", (unsigned long long)size, HEADER_MAX);
    *length = prefix + (size_t)size;
    return US_OK;
}

/* ---- a stream of bytes into one array ---- */

typedef struct sink {
    us_npy *a;
    head h;
    us_buf text; /* header bytes until it is complete */
    bool parsed, load;
    uint64_t need, got, max;
    uint64_t total; /* bytes that will come, as far as the container says */
    us_err *err;
} sink;

static us_status begin_data(sink *s, size_t length) {
    size_t prefix = (unsigned char)s->text.p[6] == 1 ? 10 : 12;
    US_TRY(read_dict((us_str){s->text.p + prefix, length - prefix}, s->a, &s->h, s->err));
    uint64_t n = 1;
    for (int i = 0; i < s->a->rank; i++)
        if (__builtin_mul_overflow(n, s->a->shape[i], &n)) return fault(s->err, "shape", "the product of the shape does not fit 64 bits");
    s->a->count = n;
    if (__builtin_mul_overflow(n, (uint64_t)s->h.item, &s->need)) return fault(s->err, "size", "the array's size does not fit 64 bits");
    if (s->need > s->total - length) return us_fail(s->err, US_E_FORMAT, "truncated", "%llu bytes of data are missing", (unsigned long long)(s->need - (s->total - length)));
    s->parsed = true;
    return US_OK;
}

static us_status feed(sink *s, const char *p, size_t n) {
    while (!s->parsed) {
        size_t length;
        US_TRY(header_length((const unsigned char *)(s->text.p ? s->text.p : ""), s->text.n, s->total, &length, s->err));
        if (length && s->text.n == length) {
            US_TRY(begin_data(s, length));
            break;
        }
        if (n == 0) return US_OK;
        size_t want = length ? length : s->text.n + 1, k = want - s->text.n < n ? want - s->text.n : n;
        us_buf_add(&s->text, p, k);
        US_TRY(us_buf_status(&s->text, s->err, "reading an array"));
        p += k;
        n -= k;
    }
    uint64_t room = s->need - (s->got < s->need ? s->got : s->need), k = n < room ? n : room;
    if (s->load && k > 0) {
        if (!s->a->data) {
            if (s->need > s->max) return us_fail(s->err, US_E_LIMIT, "limit", "the array has %llu bytes, at most %llu are read", (unsigned long long)s->need, (unsigned long long)s->max);
            s->a->data = us_malloc((size_t)s->need);
            if (!s->a->data) return us_fail_nomem(s->err, "reading an array");
        }
        memcpy((char *)s->a->data + s->got, p, (size_t)k);
    }
    s->got += n;
    return US_OK;
}

static void swap_bytes(unsigned char *p, uint64_t count, unsigned item) {
    for (uint64_t i = 0; i < count; i++, p += item)
        for (unsigned k = 0; k < item / 2; k++) {
            unsigned char t = p[k];
            p[k] = p[item - 1 - k];
            p[item - 1 - k] = t;
        }
}

/* Column order to row order. */
static us_status transpose(us_npy *a, unsigned item, us_err *err) {
    char *out = us_malloc((size_t)(a->count * item) + 1);
    if (!out) return us_fail_nomem(err, "reading an array");
    uint64_t index[US_NPY_RANK_MAX] = {0};
    for (uint64_t i = 0; i < a->count; i++) {
        uint64_t at = 0, stride = 1;
        for (int d = 0; d < a->rank; d++) {
            at += index[d] * stride;
            stride *= a->shape[d];
        }
        memcpy(out + i * item, (char *)a->data + at * item, item);
        for (int d = a->rank - 1; d >= 0 && ++index[d] == a->shape[d]; d--) index[d] = 0;
    }
    us_free(a->data);
    a->data = out;
    return US_OK;
}

static us_status finish(sink *s, us_ctx *ctx, bool member) {
    US_TRY(feed(s, "", 0));
    if (!s->parsed) return fault(s->err, s->text.n == 0 ? "magic" : "truncated", "the file ends inside the header");
    if (s->got < s->need) return us_fail(s->err, US_E_FORMAT, "truncated", "%llu bytes of data are missing", (unsigned long long)(s->need - s->got));
    if (s->got > s->need) {
        if (member) return us_fail(s->err, US_E_FORMAT, "size", "%llu bytes follow the array's data", (unsigned long long)(s->got - s->need));
        us_note(ctx, "note", "%llu bytes follow the array's data", (unsigned long long)(s->got - s->need));
    }
    if (!s->load) return US_OK;
    if (!s->a->data && !(s->a->data = us_malloc(1))) return us_fail_nomem(s->err, "reading an array"); /* an empty array */
    if (s->h.swap) swap_bytes(s->a->data, s->a->count, s->h.item);
    return s->h.fortran && s->a->rank > 1 && s->a->count > 0 ? transpose(s->a, s->h.item, s->err) : US_OK;
}

/* ---- zip ---- */

typedef struct entry {
    us_str name;
    uint64_t local, end, csize, usize; /* record [local, end) */
    uint32_t crc;
    uint16_t flags, method;
} entry;

static uint64_t le(const char *p, int n) {
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--) v = v << 8 | (unsigned char)p[i];
    return v;
}

static us_status zip_fault(us_err *err, const char *what) {
    return fault(err, "zip", what);
}

static bool has(us_str f, uint64_t at, uint64_t n) {
    return at <= f.n && n <= f.n - at;
}

/* The zip64 extra field: replaces what is 0xffffffff, in this order. */
static bool zip64_extra(us_str extra, uint64_t *usize, uint64_t *csize, uint64_t *local) {
    for (size_t at = 0; at + 4 <= extra.n;) {
        size_t n = (size_t)le(extra.p + at + 2, 2);
        if (n > extra.n - at - 4) return false;
        if (le(extra.p + at, 2) == 1) {
            const char *p = extra.p + at + 4, *end = p + n;
            uint64_t *fields[] = {usize, csize, local};
            for (int i = 0; i < 3; i++) {
                if (!fields[i] || *fields[i] != 0xffffffffu) continue;
                if (end - p < 8) return false;
                *fields[i] = le(p, 8);
                p += 8;
            }
            return true;
        }
        at += 4 + n;
    }
    return (!usize || *usize != 0xffffffffu) && (!csize || *csize != 0xffffffffu) && (!local || *local != 0xffffffffu);
}

/* Where the central directory lies: [*start, *stop), n entries. */
static us_status find_directory(us_str f, uint64_t *start, uint64_t *stop, uint64_t *n, us_err *err) {
    for (uint64_t back = 22; back <= f.n && back <= 22 + 65535; back++) {
        const char *e = f.p + f.n - back;
        if (memcmp(e, "PK\5\6", 4) != 0 || le(e + 20, 2) != back - 22) continue;
        uint64_t at = f.n - back;
        *n = le(e + 10, 2);
        uint64_t size = le(e + 12, 4);
        *start = le(e + 16, 4);
        *stop = at;
        if (le(e + 4, 2) || le(e + 6, 2) || le(e + 8, 2) != *n) return zip_fault(err, "archives in several parts are not read");
        if (at >= 20 && memcmp(f.p + at - 20, "PK\6\7", 4) == 0) {
            uint64_t e64 = le(f.p + at - 12, 8);
            if (!has(f, e64, 56) || e64 + 56 > at - 20 || memcmp(f.p + e64, "PK\6\6", 4) != 0) return zip_fault(err, "the zip64 end record is broken");
            if (e64 + 12 + le(f.p + e64 + 4, 8) != at - 20) return zip_fault(err, "the zip64 end record is broken");
            *n = le(f.p + e64 + 32, 8);
            size = le(f.p + e64 + 40, 8);
            *start = le(f.p + e64 + 48, 8);
            *stop = e64;
        }
        if (*start > *stop || *stop - *start != size) return zip_fault(err, "the directory does not end where the end record begins");
        return US_OK;
    }
    return zip_fault(err, "there is no directory: the archive is cut or not an archive");
}

static us_status check_name(us_str name, us_err *err) {
    const char *why = name.n <= 4 || !us_str_ends(name, US_LIT(".npy")) ? "does not end in .npy" : NULL;
    for (size_t at = 0; !why && at <= name.n;) {
        size_t end = us_str_find(name, '/', at);
        us_str c = us_str_sub(name, at, end);
        if (c.n == 0 || us_str_eqz(c, ".") || us_str_eqz(c, "..")) why = "has an empty, \".\" or \"..\" component";
        at = end + 1;
    }
    if (!why && us_str_find(name, '\\', 0) < name.n) why = "has a backslash";
    if (!why && memchr(name.p, 0, name.n)) why = "has a NUL";
    if (!why && name.n > NAME_MAX_BYTES) why = "is too long";
    if (!why) return US_OK;
    us_fail(err, US_E_FORMAT, "name", "the name of a member %s", why);
    return us_err_where(err, "%.*s", US_STR_ARG(us_str_sub(name, 0, 80))), US_E_FORMAT;
}

static us_status read_central(us_str f, uint64_t *at, uint64_t stop, entry *e, us_err *err) {
    if (!has(f, *at, 46) || *at + 46 > stop || memcmp(f.p + *at, "PK\1\2", 4) != 0) return zip_fault(err, "the directory is broken");
    const char *c = f.p + *at;
    uint64_t n_name = le(c + 28, 2), n_extra = le(c + 30, 2), n_comment = le(c + 32, 2), length = 46 + n_name + n_extra + n_comment;
    if (length > stop - *at) return zip_fault(err, "the directory is broken");
    *e = (entry){.name = {c + 46, (size_t)n_name}, .flags = (uint16_t)le(c + 8, 2), .method = (uint16_t)le(c + 10, 2), .crc = (uint32_t)le(c + 16, 4),
                 .csize = le(c + 20, 4), .usize = le(c + 24, 4), .local = le(c + 42, 4)};
    if (!zip64_extra((us_str){c + 46 + n_name, (size_t)n_extra}, &e->usize, &e->csize, &e->local)) return zip_fault(err, "a zip64 field is broken");
    *at += length;
    if (e->flags & 0x41) return zip_fault(err, "encrypted members are not read");
    if (e->method != 0 && e->method != 8) return us_fail(err, US_E_FORMAT, "zip-method", "compression method %u is not read (stored and deflated only)", e->method);
    /* Sizes decide what is allocated, so they are held against what is there before anything is read. */
    if (e->method == 8 && e->usize / DEFLATE_MAX > e->csize) return zip_fault(err, "a member claims more bytes than its compressed data can hold");
    return check_name(e->name, err);
}

/* Local header and data descriptor must agree with the directory. *data = where the member's bytes begin. */
static us_status check_local(us_str f, entry *e, uint64_t *data, us_err *err) {
    if (!has(f, e->local, 30) || memcmp(f.p + e->local, "PK\3\4", 4) != 0) return zip_fault(err, "a member's local header is not where the directory says");
    const char *l = f.p + e->local;
    uint64_t n_name = le(l + 26, 2), n_extra = le(l + 28, 2), csize = le(l + 18, 4), usize = le(l + 22, 4);
    if (!has(f, e->local + 30, n_name + n_extra)) return zip_fault(err, "a member's local header is cut");
    if (!us_str_eq((us_str){l + 30, (size_t)n_name}, e->name)) return zip_fault(err, "a member has another name in its local header than in the directory");
    bool later = e->flags & 8;
    if (le(l + 8, 2) != e->method || ((le(l + 6, 2) ^ e->flags) & 9)) return zip_fault(err, "a member's local header disagrees with the directory");
    us_str extra = {l + 30 + n_name, (size_t)n_extra};
    bool wide = csize == 0xffffffffu || usize == 0xffffffffu;
    if (!zip64_extra(extra, &usize, &csize, NULL)) return zip_fault(err, "a zip64 field is broken");
    if (later ? ((csize && csize != e->csize) || (usize && usize != e->usize)) : csize != e->csize || usize != e->usize)
        return zip_fault(err, "a member's sizes disagree between its local header and the directory");
    if (!later && le(l + 14, 4) != e->crc) return fault(err, "crc", "a member has two checksums");
    *data = e->local + 30 + n_name + n_extra;
    if (!has(f, *data, e->csize)) return fault(err, "truncated", "a member's data are cut");
    e->end = *data + e->csize;
    if (!later) return US_OK;
    uint64_t at = e->end;
    if (has(f, at, 4) && memcmp(f.p + at, "PK\7\10", 4) == 0) at += 4;
    for (int w = wide ? 8 : 4; w <= 8; w += 4) {
        if (!has(f, at, 4 + 2 * (uint64_t)w) || le(f.p + at, 4) != e->crc || le(f.p + at + 4, w) != e->csize || le(f.p + at + 4 + w, w) != e->usize) continue;
        e->end = at + 4 + 2 * (uint64_t)w;
        return US_OK;
    }
    return zip_fault(err, "a member's data descriptor disagrees with the directory");
}

static us_status inflate_member(us_str f, const entry *e, uint64_t data, sink *s, uint32_t *crc, uint64_t *produced) {
    char chunk[CHUNK];
    z_stream z = {0};
    if (inflateInit2(&z, -15) != Z_OK) return us_fail_nomem(s->err, "reading an archive");
    us_status st = US_OK;
    uint64_t left = e->csize;
    const char *p = f.p + data;
    int rc = Z_OK;
    while (st == US_OK && rc == Z_OK) {
        if (z.avail_in == 0 && left > 0) {
            z.next_in = (Bytef *)(uintptr_t)p; /* zlib's interface lacks const */
            z.avail_in = left > CHUNK ? CHUNK : (uInt)left;
            p += z.avail_in;
            left -= z.avail_in;
        }
        z.next_out = (Bytef *)chunk;
        z.avail_out = CHUNK;
        rc = inflate(&z, Z_NO_FLUSH);
        size_t n = CHUNK - z.avail_out;
        *produced += n;
        *crc = (uint32_t)crc32(*crc, (const Bytef *)chunk, (uInt)n);
        if (*produced > e->usize) st = zip_fault(s->err, "a member is larger than the directory says");
        else st = feed(s, chunk, n);
        if (rc == Z_OK && n == 0 && z.avail_in == 0 && left == 0) break;
    }
    bool ended = rc == Z_STREAM_END && z.avail_in == 0 && left == 0;
    inflateEnd(&z);
    if (st != US_OK) return st;
    return ended ? US_OK : zip_fault(s->err, "a member's compressed data are broken");
}

static us_status read_member(us_ctx *ctx, us_str f, const entry *e, uint64_t data, bool load, uint64_t max, us_npy *a, us_err *err) {
    sink s = {.a = a, .load = load, .max = max, .total = e->usize, .err = err};
    uint32_t crc = 0;
    uint64_t produced = 0;
    us_status st = US_OK;
    if (e->method == 8) {
        st = inflate_member(f, e, data, &s, &crc, &produced);
    } else if (e->csize != e->usize) {
        st = zip_fault(err, "a stored member has two sizes");
    } else {
        for (uint64_t at = 0; st == US_OK && at < e->csize;) {
            size_t k = e->csize - at < CHUNK ? (size_t)(e->csize - at) : CHUNK;
            crc = (uint32_t)crc32(crc, (const Bytef *)f.p + data + at, (uInt)k);
            st = feed(&s, f.p + data + at, k);
            at += k;
        }
        produced = e->csize;
    }
    if (st == US_OK && produced != e->usize) st = zip_fault(err, "a member is smaller than the directory says");
    if (st == US_OK && crc != e->crc) st = fault(err, "crc", "a member's checksum is wrong");
    if (st == US_OK) st = finish(&s, ctx, true);
    us_buf_free(&s.text);
    if (st != US_OK) us_err_where(err, "%.*s", US_STR_ARG(us_str_sub(e->name, 0, 80)));
    return st;
}

static int by_place(const void *a, const void *b) {
    const entry *x = *(const entry *const *)a, *y = *(const entry *const *)b;
    return (x->local > y->local) - (x->local < y->local);
}

/* Nothing before the first record, between records, or after the last: members in the order of their places must tile the file up to the directory. */
static us_status check_tiling(const entry *list, uint64_t n, uint64_t stop, us_err *err) {
    const entry **order = us_malloc((size_t)(n + 1) * sizeof(const entry *));
    if (!order) return us_fail_nomem(err, "reading an archive");
    for (uint64_t i = 0; i < n; i++) order[i] = &list[i];
    if (n > 0) qsort(order, (size_t)n, sizeof *order, by_place);
    us_status s = US_OK;
    uint64_t at = 0;
    for (uint64_t i = 0; s == US_OK && i < n; i++) {
        if (order[i]->local != at) s = zip_fault(err, "members overlap, or something lies between them");
        at = order[i]->end;
    }
    us_free(order);
    if (s == US_OK && at != stop) s = zip_fault(err, "something lies between the members and the directory");
    return s;
}

static us_status parse_zip(us_ctx *ctx, us_str f, bool load, uint64_t max, us_npy_set *out, us_err *err) {
    uint64_t start = 0, stop = 0, n = 0;
    US_TRY(find_directory(f, &start, &stop, &n, err));
    if (n > MEMBERS_MAX || n * 46 > stop - start) return us_fail(err, US_E_LIMIT, "zip", "an archive of %llu members is too large or broken", (unsigned long long)n);
    entry *list = us_calloc((size_t)n + 1, sizeof *list);
    uint64_t *data = us_calloc((size_t)n + 1, sizeof *data);
    out->arrays = us_calloc((size_t)n + 1, sizeof *out->arrays);
    us_map names = {0};
    us_status s = US_OK;
    if (!list || !data || !out->arrays) {
        s = us_fail_nomem(err, "reading an archive");
        goto done;
    }
    uint64_t at = start;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t old;
        US_GO(read_central(f, &at, stop, &list[i], err));
        if (!us_map_put(&names, list[i].name, 0, &old)) s = us_fail_nomem(err, "reading an archive");
        else if (old != US_MAP_NONE) s = fault(err, "duplicate", "two members have the same name");
        if (s != US_OK) goto done;
        US_GO(check_local(f, &list[i], &data[i], err));
    }
    if (at != stop) s = zip_fault(err, "the directory is broken");
    if (s == US_OK) s = check_tiling(list, n, start, err);
    for (uint64_t i = 0; s == US_OK && i < n; i++) {
        us_npy *a = &out->arrays[out->n++];
        a->name = us_strndup(list[i].name.p, list[i].name.n - 4);
        s = a->name ? read_member(ctx, f, &list[i], data[i], load, max, a, err) : us_fail_nomem(err, "reading an archive");
        if (s == US_OK && load) max -= a->count * (us_dtype_bits(a->dtype) / 8);
    }
done:
    us_free(list);
    us_free(data);
    us_map_free(&names);
    return s;
}

/* ---- entry points ---- */

us_status us_npy_parse(us_ctx *ctx, us_str f, bool load, uint64_t max, us_npy_set *out, us_err *err) {
    us_npy_set set = {0};
    us_status s;
    if (f.n >= 4 && (memcmp(f.p, "PK\3\4", 4) == 0 || memcmp(f.p, "PK\5\6", 4) == 0)) {
        s = parse_zip(ctx, f, load, max, &set, err);
    } else {
        set.arrays = us_calloc(1, sizeof *set.arrays);
        set.n = set.arrays ? 1 : 0;
        if (set.arrays) set.arrays[0].name = us_strdup("");
        if (!set.arrays || !set.arrays[0].name) {
            s = us_fail_nomem(err, "reading an array");
        } else {
            sink k = {.a = &set.arrays[0], .load = load, .max = max, .total = f.n, .err = err};
            s = feed(&k, f.p, f.n);
            if (s == US_OK) s = finish(&k, ctx, false);
            us_buf_free(&k.text);
        }
    }
    if (s == US_OK) *out = set;
    else us_npy_set_free(&set);
    return s;
}

us_status us_npy_open(us_ctx *ctx, const char *path, bool load, uint64_t max, us_npy_set *out, us_err *err) {
    char *text;
    size_t n;
    US_TRY(us_fs_read_all(path, FILE_MAX, &text, &n, err));
    us_status s = us_npy_parse(ctx, (us_str){text, n}, load, max, out, err);
    us_free(text);
    if (s != US_OK) us_err_where(err, "%s", path);
    return s;
}

void us_npy_set_free(us_npy_set *s) {
    for (size_t i = 0; i < s->n; i++) {
        us_free(s->arrays[i].name);
        us_free(s->arrays[i].data);
    }
    us_free(s->arrays);
    *s = (us_npy_set){0};
}

const us_npy *us_npy_find(const us_npy_set *s, const char *name) {
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->arrays[i].name, name) == 0) return &s->arrays[i];
    return NULL;
}

bool us_npy_i64(const us_npy *a, uint64_t i, int64_t *out) {
    const char *p = (const char *)a->data + i * (us_dtype_bits(a->dtype) / 8);
#define US_NPY_CASE(id, type)                                                                                          \
    case US_DTYPE_##id: {                                                                                              \
        type v;                                                                                                        \
        memcpy(&v, p, sizeof v);                                                                                       \
        *out = (int64_t)v;                                                                                             \
        return true;                                                                                                   \
    }
    switch (a->dtype) {
        US_NPY_CASE(I8, int8_t)
        US_NPY_CASE(I16, int16_t)
        US_NPY_CASE(I32, int32_t)
        US_NPY_CASE(I64, int64_t)
        US_NPY_CASE(U8, uint8_t)
        US_NPY_CASE(U16, uint16_t)
        US_NPY_CASE(U32, uint32_t)
    case US_DTYPE_U64: {
        uint64_t v;
        memcpy(&v, p, sizeof v);
        *out = (int64_t)v;
        return v <= INT64_MAX;
    }
    default: return false;
    }
#undef US_NPY_CASE
}

/* ---- writing ---- */

us_status us_npy_write(us_buf *buf, us_dtype t, int rank, const uint64_t *shape, const void *data, us_err *err) {
    static const struct {
        us_dtype type;
        const char *code;
    } codes[] = {{US_DTYPE_BOOL, "|b1"}, {US_DTYPE_I8, "|i1"},  {US_DTYPE_I16, "<i2"}, {US_DTYPE_I32, "<i4"}, {US_DTYPE_I64, "<i8"}, {US_DTYPE_U8, "|u1"},
                 {US_DTYPE_U16, "<u2"},  {US_DTYPE_U32, "<u4"}, {US_DTYPE_U64, "<u8"}, {US_DTYPE_F16, "<f2"}, {US_DTYPE_F32, "<f4"}, {US_DTYPE_F64, "<f8"}};
    const char *code = NULL;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].type == t) code = codes[i].code;
    if (!code || rank < 0 || rank > US_NPY_RANK_MAX) return us_fail(err, US_E_INVAL, "dtype", "NumPy files cannot hold this array");
    us_buf h = {0};
    size_t n = us_dtype_bits(t) / 8;
    us_buf_printf(&h, "{'descr': '%s', 'fortran_order': False, 'shape': (", code);
    for (int i = 0; i < rank; i++) {
        us_buf_printf(&h, i ? ", %llu" : "%llu", (unsigned long long)shape[i]);
        n *= (size_t)shape[i];
    }
    us_buf_z(&h, rank == 1 ? ",), }" : "), }");
    while ((10 + h.n + 1) % 64) us_buf_c(&h, ' ');
    us_buf_c(&h, '\n');
    us_buf_add(buf, "\x93NUMPY\1\0", 8);
    us_buf_c(buf, (char)(unsigned char)(h.n & 255));
    us_buf_c(buf, (char)(unsigned char)(h.n >> 8));
    us_buf_str(buf, us_buf_view(&h));
    us_buf_add(buf, data, n);
    if (h.failed) buf->failed = true;
    us_buf_free(&h);
    return us_buf_status(buf, err, "writing an array");
}

static void put(us_buf *b, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) us_buf_c(b, (char)(unsigned char)(v >> (8 * i) & 255));
}

/* Local header, or directory entry when `central`. Sizes above 4 GiB go to a zip64 field. */
static void put_record(us_buf *b, bool central, const char *name, uint32_t crc, uint64_t size, uint64_t local) {
    bool wide = size >= 0xffffffffu || (central && local >= 0xffffffffu);
    size_t n_extra = wide ? (central ? 28 : 20) : 0;
    us_buf_add(b, central ? "PK\1\2" : "PK\3\4", 4);
    if (central) put(b, 45, 2);
    put(b, wide ? 45 : 20, 2);
    put(b, 0, 2);                /* flags */
    put(b, 0, 2);                /* stored */
    put(b, 0, 2);                /* time and date: the epoch of zip, so that equal arrays give equal bytes */
    put(b, 0x21, 2);
    put(b, crc, 4);
    put(b, wide ? 0xffffffffu : size, 4);
    put(b, wide ? 0xffffffffu : size, 4);
    put(b, strlen(name) + 4, 2);
    put(b, n_extra, 2);
    if (central) {
        put(b, 0, 2 + 2 + 2);
        put(b, 0, 4);
        put(b, wide ? 0xffffffffu : local, 4);
    }
    us_buf_z(b, name);
    us_buf_z(b, ".npy");
    if (!wide) return;
    put(b, 1, 2);
    put(b, n_extra - 4, 2);
    put(b, size, 8);
    put(b, size, 8);
    if (central) put(b, local, 8);
}

us_status us_npz_write(const char *path, const us_npy *arrays, size_t n, us_err *err) {
    us_buf file = {0}, central = {0}, one = {0};
    us_status s = US_OK;
    for (size_t i = 0; i < n; i++) {
        us_buf_clear(&one);
        US_GO(us_npy_write(&one, arrays[i].dtype, arrays[i].rank, arrays[i].shape, arrays[i].data, err));
        uint32_t crc = (uint32_t)crc32_z(0, (const Bytef *)one.p, one.n);
        uint64_t local = file.n;
        put_record(&file, false, arrays[i].name, crc, one.n, 0);
        us_buf_str(&file, us_buf_view(&one));
        put_record(&central, true, arrays[i].name, crc, one.n, local);
    }
    uint64_t start = file.n, stop = start + central.n;
    us_buf_str(&file, us_buf_view(&central));
    bool wide = start >= 0xffffffffu || n >= 0xffff;
    if (wide) {
        us_buf_add(&file, "PK\6\6", 4);
        put(&file, 44, 8);
        put(&file, 45, 2);
        put(&file, 45, 2);
        put(&file, 0, 8);
        put(&file, n, 8);
        put(&file, n, 8);
        put(&file, central.n, 8);
        put(&file, start, 8);
        us_buf_add(&file, "PK\6\7", 4);
        put(&file, 0, 4);
        put(&file, stop, 8);
        put(&file, 1, 4);
    }
    us_buf_add(&file, "PK\5\6", 4);
    put(&file, 0, 4);
    put(&file, wide ? 0xffff : n, 2);
    put(&file, wide ? 0xffff : n, 2);
    put(&file, wide ? 0xffffffffu : central.n, 4);
    put(&file, wide ? 0xffffffffu : start, 4);
    put(&file, 0, 2);
    if (central.failed) file.failed = true;
    US_GO(us_buf_status(&file, err, "writing an archive"));
    s = us_fs_write_atomic(path, us_buf_view(&file), err);
done:
    us_buf_free(&file);
    us_buf_free(&central);
    us_buf_free(&one);
    return s;
}

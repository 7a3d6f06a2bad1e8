/**
 * Strict JSON (RFC 8259) with byte positions: a pull scanner, and a compact document on top of it.
 *
 * For texts that are large or must keep their bytes: safetensors headers (100 MB), indexes, tokenizer.json, and config.json
 * that is edited as text. Small documents may use jansson, which also writes JSON. Nothing is accepted that the RFC does
 * not accept: no comments, trailing commas, BOM, NaN, lone surrogates, raw control characters, duplicate keys (document
 * only; compared after escapes are resolved). Memory of a document: 16 bytes a node + 4 a key, sized by a first pass.
 *
 * Classes of errors: "json", "utf8", "depth", "trailing", "duplicate-key". err->offset is the byte position.
 * Tests: tests/unit/test_json.c, fixtures/hostile/json, fuzz target json.
 */
#ifndef US_IO_JSON_H
#define US_IO_JSON_H

#include "base/alloc.h"
#include "base/str.h"

enum { US_JSON_DEPTH = 256 };

typedef enum us_json_type {
    US_JSON_NULL,
    US_JSON_FALSE,
    US_JSON_TRUE,
    US_JSON_NUMBER,
    US_JSON_STRING,
    US_JSON_ARRAY,
    US_JSON_OBJECT,
} us_json_type;

/* ---- pull scanner ---- */

typedef enum us_json_event {
    US_JSON_EV_VALUE,  /* null, false, true, number or string: see type */
    US_JSON_EV_KEY,    /* a string followed by its value */
    US_JSON_EV_BEGIN,  /* array or object */
    US_JSON_EV_END,    /* array or object */
    US_JSON_EV_DONE,   /* the document is complete; only white space followed */
} us_json_event;

typedef struct us_json_token {
    us_json_event event;
    us_json_type type;
    bool escaped;      /* a string that holds backslash escapes */
    size_t begin, end; /* span in the text; strings with their quotes */
} us_json_token;

/** flags */
enum { US_JSON_INFINITY = 1 }; /* accept the bare words Infinity, -Infinity, NaN as numbers (config.json of hybrid models) */

typedef struct us_json_scan {
    const char *text;
    size_t len, pos;
    unsigned flags;
    int depth;
    unsigned char in_object[US_JSON_DEPTH]; /* by depth */
    unsigned char state;
} us_json_scan;

/** Start on a borrowed text. The text must be valid UTF-8: us_json_doc_parse checks; scanner users check with us_utf8_valid. */
void us_json_scan_init(us_json_scan *s, us_str text, unsigned flags);
us_status us_json_scan_next(us_json_scan *s, us_json_token *t, us_err *err) US_WARN_UNUSED;
/** The string of a token without quotes, escapes resolved. Borrows from the text when nothing is escaped, else from buf
 *  (overwritten by the next call with the same buf). */
us_status us_json_scan_string(const us_json_scan *s, const us_json_token *t, us_buf *buf, us_str *out, us_err *err) US_WARN_UNUSED;
/** Number tokens: plain digits only (no sign, fraction, exponent), value at most 2^64-1; else false. */
bool us_json_text_u64(us_str raw, uint64_t *out);

/* ---- document ---- */

typedef struct us_json_node {
    uint32_t begin, end; /* span of the value in the text */
    uint32_t next;       /* index of the first node behind this subtree */
    uint32_t bits;       /* type in the low 3 bits, escaped in bit 3; above: children (containers), index of decoded text (strings) */
} us_json_node;

typedef struct us_json_doc {
    us_str text;
    us_json_node *nodes; /* node 0 is the root; an object's children are key, value, key, value ... */
    uint32_t n_nodes;
    us_str *decoded; /* strings with escapes */
    us_arena arena;
    char *owned; /* the text, when the document owns it */
} us_json_doc;

typedef uint32_t us_json_ref; /* a node; US_JSON_NO = absent */
#define US_JSON_NO UINT32_MAX

/** Parse. The text is borrowed and must outlive the document (see us_json_doc_take). Texts of 4 GiB and more are refused. */
us_status us_json_doc_parse(us_json_doc *d, us_str text, unsigned flags, us_err *err) US_WARN_UNUSED;
/** As parse, but takes ownership of text (from us_malloc), also on failure. */
us_status us_json_doc_take(us_json_doc *d, char *text, size_t len, unsigned flags, us_err *err) US_WARN_UNUSED;
void us_json_doc_free(us_json_doc *d);

us_json_type us_json_type_of(const us_json_doc *d, us_json_ref r);
/** Raw text of a value as written. */
us_str us_json_raw(const us_json_doc *d, us_json_ref r);
/** A string, escapes resolved; {NULL,0} if r is no string. */
us_str us_json_string(const us_json_doc *d, us_json_ref r);
/** Elements of an array, members of an object, else 0. */
uint32_t us_json_count(const us_json_doc *d, us_json_ref r);
/** Member of an object by name, or US_JSON_NO (also when `object` is absent or no object). Linear. */
us_json_ref us_json_get(const us_json_doc *d, us_json_ref object, const char *key);
/** Path of member names separated by '.', e.g. "text_config.num_experts". */
us_json_ref us_json_path(const us_json_doc *d, us_json_ref from, const char *path);
/** First child (first element; for objects the first key), or US_JSON_NO. */
us_json_ref us_json_first(const us_json_doc *d, us_json_ref r);
/** Next sibling behind r inside `parent`, or US_JSON_NO. For objects: from a key to its value, from a value to the next key. */
us_json_ref us_json_next(const us_json_doc *d, us_json_ref parent, us_json_ref r);
/** Element i of an array, or US_JSON_NO. Linear. */
us_json_ref us_json_at(const us_json_doc *d, us_json_ref array, uint32_t i);
/** Plain non-negative integer ("8", not "8.0", "-1", "1e3"). */
bool us_json_u64(const us_json_doc *d, us_json_ref r, uint64_t *out);
/** Integer with optional sign. */
bool us_json_i64(const us_json_doc *d, us_json_ref r, int64_t *out);
/** Any number; locale-independent. Infinity words give infinities. */
bool us_json_double(const us_json_doc *d, us_json_ref r, double *out);
bool us_json_bool(const us_json_doc *d, us_json_ref r, bool *out);

/* ---- edits: change values, keep every other byte ---- */

typedef struct us_json_edit {
    size_t begin, end; /* span of the text that is replaced */
    us_str with;
} us_json_edit;

/** Apply non-overlapping edits (sorted here by begin) to text; append the result to out. */
us_status us_json_apply(us_str text, us_json_edit *edits, size_t n, us_buf *out, us_err *err) US_WARN_UNUSED;

#endif

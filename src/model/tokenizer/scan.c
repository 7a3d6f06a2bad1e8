/*
 * The split patterns of known families as hand-made scanners: what the regular expression would match at a place, alternative by
 * alternative, with its backtracking worked out beforehand. A text in C beside each says which. Linear in the length of the text.
 * Tests: tests/golden/test_fix_tokenizers.c, tests/unit/test_tokenizer.c (against PCRE2).
 */
#include <string.h>

#include "model/tokenizer/internal.h"

#define LETTER US_UC_LETTER
#define MARK US_UC_MARK
#define NUMBER US_UC_NUMBER
#define SPACE US_UC_SPACE
#define NEWLINE US_UC_NEWLINE

static inline unsigned cls(const unsigned char *p, size_t i, unsigned *len) {
    if (p[i] < 0x80) {
        *len = 1;
        return us_uc_stage2[1][p[i]];
    }
    return us_uc_of(us_uc_decode(p + i, len));
}

/* Code points from i on whose class has a bit of `want` and none of `not`. */
static inline size_t run(const unsigned char *p, size_t i, size_t n, unsigned want, unsigned not) {
    unsigned len;
    while (i < n) {
        unsigned c = cls(p, i, &len);
        if (!(c & want) || (c & not)) break;
        i += len;
    }
    return i;
}

/* Code points from i on without any of `bits`. */
static inline size_t run_not(const unsigned char *p, size_t i, size_t n, unsigned bits) {
    unsigned len;
    while (i < n && !(cls(p, i, &len) & bits)) i += len;
    return i;
}

static inline size_t newlines(const unsigned char *p, size_t i, size_t n, bool slash) {
    while (i < n && (p[i] == '\r' || p[i] == '\n' || (slash && p[i] == '/'))) i++;
    return i;
}

/* 's|'t|'re|'ve|'m|'ll|'d at i: its end, or i. fold: (?i:...), where long s counts as s. */
static inline size_t contraction(const unsigned char *p, size_t i, size_t n, bool fold) {
    if (p[i] != '\'' || i + 1 >= n) return i;
    unsigned a = p[i + 1], b = i + 2 < n ? p[i + 2] : 0;
    if (fold) {
        if (a == 0xC5 && b == 0xBF) return i + 3;
        if (a - 'A' < 26u) a |= 32;
        if (b - 'A' < 26u) b |= 32;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
    return i;
}

/* [\s*[\r\n]+|]\s+(?!\S)|\s+ at i, which is white space. */
static inline size_t white(const unsigned char *p, size_t i, size_t n, bool lines) {
    size_t j = i, last = i, newline = 0;
    unsigned len, c;
    while (j < n && ((c = cls(p, j, &len)) & SPACE)) {
        last = j;
        j += len;
        if (lines && (c & NEWLINE)) newline = j;
    }
    if (newline) return newline;
    return j == n || last == i ? j : last;
}

/* \p{N}{1,3} */
static inline size_t digits3(const unsigned char *p, size_t i, size_t n, unsigned first_len) {
    unsigned len;
    i += first_len;
    for (int k = 0; k < 2 && i < n && (cls(p, i, &len) & NUMBER); k++) i += len;
    return i;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t scan_gpt2(const unsigned char *p, size_t i, size_t n, bool *match) {
    *match = true;
    size_t e = contraction(p, i, n, false);
    if (e > i) return e;
    unsigned len, c = cls(p, i, &len);
    size_t at = i;
    if (p[i] == ' ' && i + 1 < n) {
        c = cls(p, i + 1, &len);
        if (!(c & SPACE)) at = i + 1;
    }
    if (c & LETTER) return run(p, at, n, LETTER, 0);
    if (c & NUMBER) return run(p, at, n, NUMBER, 0);
    if (!(c & SPACE)) return run_not(p, at, n, SPACE | LETTER | NUMBER);
    return white(p, i, n, false);
}

/*
 * (?i:'s|...)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * marks: [\p{L}\p{M}]+ and [^\s\p{L}\p{M}\p{N}]+; three: \p{N}{1,3}.
 */
static inline size_t scan_qwen(const unsigned char *p, size_t i, size_t n, bool marks, bool three) {
    const unsigned word = marks ? LETTER | MARK : LETTER;
    unsigned len, len2, c = cls(p, i, &len);
    if (c & LETTER) return run(p, i + len, n, word, 0);
    size_t e = contraction(p, i, n, true);
    if (e > i) return e;
    if (c & NUMBER) return three ? digits3(p, i, n, len) : i + len;
    unsigned d = i + len < n ? cls(p, i + len, &len2) : 0;
    if (!(c & NEWLINE) && (d & word)) return run(p, i + len, n, word, 0);
    if (marks && (c & MARK)) return i + len;
    size_t at = i;
    if (p[i] == ' ' && i + 1 < n) {
        at = i + 1;
        c = d;
    }
    if (!(c & (SPACE | word | NUMBER))) return newlines(p, run_not(p, at, n, SPACE | word | NUMBER), n, false);
    return white(p, i, n, true);
}

static size_t scan_qwen2(const unsigned char *p, size_t i, size_t n, bool *match) {
    *match = true;
    return scan_qwen(p, i, n, false, false);
}
static size_t scan_qwen35(const unsigned char *p, size_t i, size_t n, bool *match) {
    *match = true;
    return scan_qwen(p, i, n, true, false);
}
static size_t scan_llama3(const unsigned char *p, size_t i, size_t n, bool *match) {
    *match = true;
    return scan_qwen(p, i, n, false, true);
}

enum { HEAD = US_UC_UPPER | US_UC_OTHER_LETTER | US_UC_MARK, TAIL = US_UC_LOWER | US_UC_OTHER_LETTER | US_UC_MARK };

/* HEAD*TAIL+ or HEAD+TAIL* from i: its end, or i. `not` is taken out of both classes. */
static inline size_t cased(const unsigned char *p, size_t i, size_t n, unsigned not) {
    size_t j = i, both = i; /* both: behind the last character that is in HEAD and TAIL */
    unsigned len, c = 0;
    while (j < n && ((c = cls(p, j, &len)) & HEAD) && !(c & not)) {
        j += len;
        if (c & TAIL) both = j;
    }
    size_t k = run(p, j, n, TAIL, not);
    if (k > j) return k;
    return both > i ? both : j; /* HEAD* gives back; else the second alternative */
}

/*
 * [^\r\n\p{L}\p{N}]?HEAD*TAIL+(?i:'s|...)?|[^\r\n\p{L}\p{N}]?HEAD+TAIL*(?i:'s|...)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * han: [\p{Han}]+ first, and HEAD and TAIL without it; slash: the / of [\r\n/].
 */
static inline size_t scan_cased(const unsigned char *p, size_t i, size_t n, bool han, bool slash) {
    const unsigned not = han ? US_UC_HAN : 0;
    unsigned len, len2, c = cls(p, i, &len);
    if (han && (c & US_UC_HAN)) return run(p, i, n, US_UC_HAN, 0);
    size_t e = i;
    if (!(c & (NEWLINE | LETTER | NUMBER))) {
        size_t from = i + len;
        e = cased(p, from, n, not);
        /* The first alternative is tried with and without its optional character before the second one is. */
        if (e == from) e = cased(p, i, n, not);
    } else if (c & LETTER) {
        e = cased(p, i, n, not);
    }
    if (e > i) {
        size_t f = e < n ? contraction(p, e, n, true) : e;
        return f;
    }
    if (c & NUMBER) return digits3(p, i, n, len);
    size_t at = i;
    if (p[i] == ' ' && i + 1 < n) {
        at = i + 1;
        c = cls(p, at, &len2);
    }
    if (!(c & (SPACE | LETTER | NUMBER))) return newlines(p, run_not(p, at, n, SPACE | LETTER | NUMBER), n, slash);
    return white(p, i, n, true);
}

static size_t scan_o200k(const unsigned char *p, size_t i, size_t n, bool *match) {
    *match = true;
    return scan_cased(p, i, n, false, true);
}
static size_t scan_kimi(const unsigned char *p, size_t i, size_t n, bool *match) {
    *match = true;
    return scan_cased(p, i, n, true, false);
}

/* \p{N}{1,3} as a splitter of its own */
static size_t scan_digits3(const unsigned char *p, size_t i, size_t n, bool *match) {
    unsigned len;
    *match = (cls(p, i, &len) & NUMBER) != 0;
    return *match ? digits3(p, i, n, len) : run_not(p, i, n, NUMBER);
}

static inline bool cjk(const unsigned char *p, size_t i, unsigned *len) {
    uint32_t c = us_uc_decode(p + i, len);
    return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}
/* [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+ */
static size_t scan_cjk(const unsigned char *p, size_t i, size_t n, bool *match) {
    unsigned len;
    *match = cjk(p, i, &len);
    do i += len;
    while (i < n && cjk(p, i, &len) == *match);
    return i;
}

static inline bool ascii_punct(unsigned c) {
    return c - 33 < 15 || c - 58 < 7 || c - 91 < 6 || c - 123 < 4;
}
static inline bool ascii_letter(unsigned c) {
    return (c | 32) - 'a' < 26;
}

/*
 * [ASCII punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * Returns i when nothing matches there.
 */
static inline size_t deepseek_at(const unsigned char *p, size_t i, size_t n) {
    const unsigned word = LETTER | MARK, punct = US_UC_PUNCT | US_UC_SYMBOL;
    unsigned len, len2, c = cls(p, i, &len);
    if (ascii_punct(p[i]) && i + 1 < n && ascii_letter(p[i + 1])) {
        i += 2;
        while (i < n && ascii_letter(p[i])) i++;
        return i;
    }
    if (!(c & (NEWLINE | LETTER | punct)) && i + len < n && (cls(p, i + len, &len2) & word)) return run(p, i + len, n, word, 0);
    if (c & word) return run(p, i, n, word, 0);
    size_t at = i;
    unsigned d = c;
    if (p[i] == ' ' && i + 1 < n) {
        at = i + 1;
        d = cls(p, at, &len2);
    }
    if (d & punct) return newlines(p, run(p, at, n, punct, 0), n, false);
    if (c & SPACE) return white(p, i, n, true);
    return i;
}
static size_t scan_deepseek3(const unsigned char *p, size_t i, size_t n, bool *match) {
    size_t e = deepseek_at(p, i, n);
    *match = e > i;
    if (e > i) return e;
    unsigned len;
    do {
        (void)cls(p, i, &len);
        i += len;
    } while (i < n && deepseek_at(p, i, n) == i);
    return i;
}

/* [0-9][0-9][0-9] */
static size_t scan_ascii3(const unsigned char *p, size_t i, size_t n, bool *match) {
#define DIGIT(k) (p[k] >= '0' && p[k] <= '9')
    *match = n - i >= 3 && DIGIT(i) && DIGIT(i + 1) && DIGIT(i + 2);
    if (*match) return i + 3;
    do i++;
    while (i < n && !(n - i >= 3 && DIGIT(i) && DIGIT(i + 1) && DIGIT(i + 2)));
#undef DIGIT
    return i;
}

us_scan_fn us_scan_gpt2(void) {
    return scan_gpt2;
}

us_windows us_scan_windows(us_scan_fn scan) {
    return scan == scan_gpt2 ? US_WINDOWS_GPT2 : scan == scan_qwen2 ? US_WINDOWS_QWEN2 : scan == scan_llama3 ? US_WINDOWS_LLAMA3 : US_WINDOWS_NONE;
}

us_scan_fn us_scan_known(us_str pattern, bool *covers) {
#define CONTR "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WHITE "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UP "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LO "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define NH "&&[^\\p{Han}]]"
#define CASED(up, lo) "[^\\r\\n\\p{L}\\p{N}]?" up "*" lo "+" CONTR "?|[^\\r\\n\\p{L}\\p{N}]?" up "+" lo "*" CONTR "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+"
    static const struct {
        const char *text;
        us_scan_fn scan;
        bool covers;
    } known[] = {
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", scan_gpt2, true},
        {CONTR "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" WHITE, scan_qwen2, true},
        {CONTR "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" WHITE, scan_qwen35, true},
        {CONTR "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" WHITE, scan_llama3, true},
        {CASED("[" UP "]", "[" LO "]") "[\\r\\n/]*" WHITE, scan_o200k, true},
        {"[\\p{Han}]+|" CASED("[" UP NH, "[" LO NH) "[\\r\\n]*" WHITE, scan_kimi, true},
        {"\\p{N}{1,3}", scan_digits3, false},
        {"[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+", scan_cjk, false},
        {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*" WHITE,
         scan_deepseek3, false},
        {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
         scan_deepseek3, false},
        {"[0-9][0-9][0-9]", scan_ascii3, false},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (us_str_eqz(pattern, known[i].text)) {
            *covers = known[i].covers;
            return known[i].scan;
        }
    return NULL;
}

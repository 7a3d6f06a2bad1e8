/* Lexer: the rules of trim_blocks, lstrip_blocks and the signs - and +, then tokens inside tags. */
#include "model/chat/lexer.h"

#include <string.h>

#include "model/chat/value.h"

typedef struct lexer {
    us_str s;
    size_t at;
    uint32_t line;
    us_arena *arena;
    chat_tokens *out;
    bool line_starting; /* the last token ended with a newline, or nothing came yet */
    us_err *err;
} lexer;

static us_status fault(lexer *l, const char *what, us_str shown) {
    us_fail(l->err, US_E_FORMAT, "template-syntax", shown.n ? "%s: \"%.*s\"" : "%s%.*s", what, US_STR_ARG(us_str_sub(shown, 0, 60)));
    us_err_where(l->err, "line %u", l->line);
    return US_E_FORMAT;
}

static us_status emit(lexer *l, chat_tok type, us_str text) {
    if (!us_grow(&l->out->list, &l->out->cap, l->out->n + 1, sizeof *l->out->list)) return us_fail_nomem(l->err, "reading a template");
    l->out->list[l->out->n++] = (chat_token){type, l->line, text};
    return US_OK;
}

static void move_to(lexer *l, size_t to) {
    for (; l->at < to; l->at++) l->line += l->s.p[l->at] == '\n';
}

static char peek(const lexer *l, size_t ahead) {
    return l->at + ahead < l->s.n ? l->s.p[l->at + ahead] : 0;
}

static bool blank(us_str s) {
    for (size_t i = 0; i < s.n; i++)
        if (!strchr(" \t\n\r\f\v", s.p[i])) return false;
    return true;
}

static us_str strip_right(us_str s) {
    while (s.n) {
        size_t at = s.n - 1;
        while (at > 0 && ((unsigned char)s.p[at] & 0xc0) == 0x80) at--;
        size_t next = at;
        if (!chat_is_space(chat_decode(s, &next))) break;
        s.n = at;
    }
    return s;
}

/* The text before a tag: cut by "-", or by lstrip_blocks when only blanks stand before the tag on its line. */
static us_status emit_text(lexer *l, us_str text, bool variable) {
    char sign = peek(l, 2);
    if (sign == '-') text = strip_right(text);
    else if (sign != '+' && !variable) {
        size_t start = text.n;
        while (start > 0 && text.p[start - 1] != '\n') start--;
        if ((start > 0 || l->line_starting) && blank(us_str_sub(text, start, text.n))) text.n = start;
    }
    return text.n ? emit(l, CHAT_T_TEXT, text) : US_OK;
}

/* Behind an end tag: "-" eats all white space, trim_blocks one newline, "+" nothing. */
static void after_tag(lexer *l, char sign, bool trims) {
    size_t before = l->at, at = l->at;
    if (sign == '-') {
        for (size_t next = at; next < l->s.n && chat_is_space(chat_decode(l->s, &next)); at = next) {
        }
    } else if (trims && sign != '+' && at < l->s.n && l->s.p[at] == '\n') {
        at++;
    }
    move_to(l, at);
    l->line_starting = l->at > before && l->s.p[l->at - 1] == '\n';
}

static bool name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

static bool digit(char c) {
    return c >= '0' && c <= '9';
}

static bool hex(us_str s, size_t at, int n, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < n; i++) {
        char c = at + (size_t)i < s.n ? s.p[at + (size_t)i] : 0;
        int d = digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0) return false;
        *out = *out * 16 + (uint32_t)d;
    }
    return *out <= 0x10ffff && (*out < 0xd800 || *out > 0xdfff);
}

/* Python's string escapes. Unknown ones keep their backslash. */
static us_status lex_string(lexer *l) {
    char quote = l->s.p[l->at];
    size_t end = l->at + 1;
    while (end < l->s.n && l->s.p[end] != quote) end += l->s.p[end] == '\\' ? 2 : 1;
    if (end >= l->s.n) return fault(l, "a text in quotes does not end", US_LIT(""));
    us_str body = us_str_sub(l->s, l->at + 1, end);
    char *o = us_arena_alloc(l->arena, body.n * 2 + 4);
    size_t n = 0;
    if (!o) return us_fail_nomem(l->err, "reading a template");
    for (size_t i = 0; i < body.n; i++) {
        if (body.p[i] != '\\' || i + 1 >= body.n) {
            o[n++] = body.p[i];
            continue;
        }
        static const char from[] = "ntrabfv\\'\"", to[] = "\n\t\r\a\b\f\v\\'\"";
        char c = body.p[++i];
        const char *known = memchr(from, c, sizeof from - 1);
        uint32_t u;
        int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (known) o[n++] = to[known - from];
        else if (c == '\n') continue;
        else if (digits && hex(body, i + 1, digits, &u)) n += us_utf8_put(o + n, u), i += (size_t)digits;
        else if (c >= '0' && c <= '7') {
            for (u = 0, digits = 0; digits < 3 && i < body.n && body.p[i] >= '0' && body.p[i] <= '7'; digits++) u = u * 8 + (uint32_t)(body.p[i++] - '0');
            i--;
            n += us_utf8_put(o + n, u);
        } else o[n++] = '\\', o[n++] = c;
    }
    US_TRY(emit(l, CHAT_T_STRING, (us_str){o, n}));
    move_to(l, end + 1);
    return US_OK;
}

static us_status lex_number(lexer *l) {
    size_t at = l->at;
    bool real = false;
    const us_str s = l->s;
    if (s.p[at] == '0' && at + 1 < s.n && strchr("xXoObB", s.p[at + 1])) {
        at += 2;
        while (at < s.n && (digit(s.p[at]) || s.p[at] == '_' || (s.p[at] | 32) >= 'a') && ((s.p[at] | 32) <= 'f' || s.p[at] == '_')) at++;
    } else {
        while (at < s.n && (digit(s.p[at]) || s.p[at] == '_')) at++;
        if (at + 1 < s.n && s.p[at] == '.' && digit(s.p[at + 1])) {
            real = true;
            at++;
            while (at < s.n && (digit(s.p[at]) || s.p[at] == '_')) at++;
        }
        size_t e = at + 1;
        if (at < s.n && (s.p[at] == 'e' || s.p[at] == 'E')) {
            if (e < s.n && (s.p[e] == '+' || s.p[e] == '-')) e++;
            if (e < s.n && digit(s.p[e])) {
                real = true;
                for (at = e; at < s.n && digit(s.p[at]);) at++;
            }
        }
    }
    US_TRY(emit(l, real ? CHAT_T_FLOAT : CHAT_T_INT, us_str_sub(s, l->at, at)));
    move_to(l, at);
    return US_OK;
}

/* Tokens up to the end tag ("%}" or "}}"), which is not an end inside brackets. */
static us_status lex_tag(lexer *l, bool variable) {
    int depth = 0;
    const char *end = variable ? "}}" : "%}";
    for (;;) {
        while (l->at < l->s.n && strchr(" \t\n\r\f\v", l->s.p[l->at])) move_to(l, l->at + 1);
        if (l->at >= l->s.n) return fault(l, "a tag does not end", US_LIT(""));
        char c = l->s.p[l->at];
        size_t sign = (c == '-' || (c == '+' && !variable)) ? 1 : 0;
        if (depth == 0 && peek(l, sign) == end[0] && peek(l, sign + 1) == end[1]) {
            US_TRY(emit(l, variable ? CHAT_T_VAR_END : CHAT_T_BLOCK_END, us_str_sub(l->s, l->at, l->at + 2)));
            move_to(l, l->at + sign + 2);
            after_tag(l, sign ? c : 0, !variable);
            return US_OK;
        }
        if (c == '"' || c == '\'') {
            US_TRY(lex_string(l));
        } else if (digit(c)) {
            US_TRY(lex_number(l));
        } else if (name_start(c)) {
            size_t at = l->at;
            while (at < l->s.n && (name_start(l->s.p[at]) || digit(l->s.p[at]))) at++;
            US_TRY(emit(l, CHAT_T_NAME, us_str_sub(l->s, l->at, at)));
            move_to(l, at);
        } else {
            static const char *const two[] = {"**", "//", "==", "!=", "<=", ">="};
            size_t n = strchr("+-*/%~()[]{}.,:|=<>;", c) ? 1 : 0;
            for (size_t i = 0; i < sizeof two / sizeof *two; i++)
                if (c == two[i][0] && peek(l, 1) == two[i][1]) n = 2;
            if (n == 0) return fault(l, "a character means nothing here", us_str_sub(l->s, l->at, l->at + 1));
            if (strchr("([{", c)) depth++;
            if (strchr(")]}", c) && --depth < 0) return fault(l, "an unexpected bracket", us_str_sub(l->s, l->at, l->at + 1));
            US_TRY(emit(l, CHAT_T_OP, us_str_sub(l->s, l->at, l->at + n)));
            move_to(l, l->at + n);
        }
    }
}

/* At "{%": is it {% word %}? Then *end = behind its "%}", *sign = the sign there. */
static bool is_word_tag(const lexer *l, size_t at, const char *word, size_t *end, char *sign) {
    us_str s = l->s;
    at += 2;
    if (at < s.n && (s.p[at] == '-' || s.p[at] == '+')) at++;
    while (at < s.n && strchr(" \t\n\r", s.p[at])) at++;
    us_str w = us_str_z(word);
    if (!us_str_starts(us_str_sub(s, at, s.n), w)) return false;
    at += w.n;
    while (at < s.n && strchr(" \t\n\r", s.p[at])) at++;
    *sign = 0;
    if (at < s.n && (s.p[at] == '-' || s.p[at] == '+')) *sign = s.p[at++];
    if (at + 1 >= s.n || s.p[at] != '%' || s.p[at + 1] != '}') return false;
    *end = at + 2;
    return true;
}

static us_status lex_raw(lexer *l, size_t begin, char sign) {
    move_to(l, begin);
    if (sign == '-') after_tag(l, '-', false);
    for (size_t at = l->at; at + 1 < l->s.n; at++) {
        size_t end;
        char end_sign;
        if (l->s.p[at] != '{' || l->s.p[at + 1] != '%' || !is_word_tag(l, at, "endraw", &end, &end_sign)) continue;
        us_str text = us_str_sub(l->s, l->at, at);
        move_to(l, at);
        l->line_starting = false;
        US_TRY(emit_text(l, text, false));
        move_to(l, end);
        after_tag(l, end_sign, true);
        return US_OK;
    }
    return fault(l, "a raw block does not end", US_LIT(""));
}

us_status chat_lex(us_str source, us_arena *arena, chat_tokens *out, us_err *err) {
    lexer l = {.s = source, .line = 1, .arena = arena, .out = out, .line_starting = true, .err = err};
    while (l.at < source.n) {
        size_t at = l.at;
        while (at + 1 < source.n && !(source.p[at] == '{' && strchr("{%#", source.p[at + 1]))) at++;
        if (at + 1 >= source.n) {
            US_TRY(emit(&l, CHAT_T_TEXT, us_str_sub(source, l.at, source.n)));
            move_to(&l, source.n);
            break;
        }
        us_str text = us_str_sub(source, l.at, at);
        char kind = source.p[at + 1], sign;
        size_t end;
        move_to(&l, at);
        US_TRY(emit_text(&l, text, kind == '{'));
        if (kind == '%' && is_word_tag(&l, at, "raw", &end, &sign)) {
            US_TRY(lex_raw(&l, end, sign));
            continue;
        }
        if (kind == '#') {
            for (end = at + 2; end + 1 < source.n && !(source.p[end] == '#' && source.p[end + 1] == '}'); end++) {
            }
            if (end + 1 >= source.n) return fault(&l, "a comment does not end", US_LIT(""));
            sign = end > at + 2 ? source.p[end - 1] : 0;
            move_to(&l, end + 2);
            after_tag(&l, sign == '-' || sign == '+' ? sign : 0, true);
            continue;
        }
        sign = peek(&l, 2);
        US_TRY(emit(&l, kind == '{' ? CHAT_T_VAR : CHAT_T_BLOCK, us_str_sub(source, at, at + 2)));
        move_to(&l, at + 2 + (sign == '-' || (sign == '+' && kind == '%')));
        US_TRY(lex_tag(&l, kind == '{'));
    }
    return emit(&l, CHAT_T_EOF, US_LIT(""));
}

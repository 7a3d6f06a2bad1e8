/* Property tests on a tape of choices. */
#include "support/prop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "base/alloc.h"
#include "base/rng.h"
#include "base/str.h"

enum { CHOICES_MAX = 1 << 16, SHRINK_RUNS = 4000 };

/* A choice is kept as the number drawn, already reduced to its range: that is what shrinks well. */
struct us_prop {
    uint64_t seed, stream; /* of fresh choices */
    uint64_t *tape;
    size_t n_tape, cap; /* recorded choices */
    size_t at;          /* next choice to take */
    bool replay;        /* take from the tape; 0 behind its end */
    us_buf said;
};

/* Take the next choice in [0, n): from the tape, or a fresh one, which `fresh` gives. */
static uint64_t next_choice(us_prop *p, uint64_t n, uint64_t fresh) {
    if (p->replay) {
        uint64_t v = p->at < p->n_tape ? p->tape[p->at] : 0;
        p->at++;
        return v < n ? v : n - 1;
    }
    p->at++;
    if (p->n_tape < CHOICES_MAX && us_grow(&p->tape, &p->cap, p->n_tape + 1, sizeof *p->tape))
        p->tape[p->n_tape++] = fresh;
    return fresh;
}

static uint64_t choice(us_prop *p, uint64_t n) {
    if (n == 0) return 0;
    return next_choice(p, n, p->replay ? 0 : us_rng_below(p->seed, 2 * p->stream, p->at, n));
}

uint64_t prop_below(us_prop *p, uint64_t n) {
    return choice(p, n);
}

int64_t prop_range(us_prop *p, int64_t lo, int64_t hi) {
    if (hi <= lo) return lo;
    uint64_t span = (uint64_t)hi - (uint64_t)lo;
    return (int64_t)((uint64_t)lo + choice(p, span == UINT64_MAX ? span : span + 1));
}

/* Drawn in two steps, kept as one choice, so that it shrinks like a plain number. */
size_t prop_size(us_prop *p, size_t max) {
    static const uint64_t caps[8] = {8, 8, 8, 8, 64, 64, UINT64_MAX, 0};
    uint64_t fresh = 0, n = (uint64_t)max + 1;
    if (!p->replay) {
        uint64_t cap = caps[us_rng_below(p->seed, 2 * p->stream + 1, p->at, 8)];
        fresh = cap ? us_rng_below(p->seed, 2 * p->stream, p->at, cap < max ? cap + 1 : n) : max;
    }
    return (size_t)next_choice(p, n, fresh);
}

bool prop_bool(us_prop *p) {
    return choice(p, 2) == 1;
}

double prop_unit(us_prop *p) {
    return (double)choice(p, (uint64_t)1 << 53) * 0x1p-53;
}

uint64_t prop_bits(us_prop *p) {
    switch (choice(p, 4)) {
    case 0: return choice(p, 3);
    case 1: return ((uint64_t)1 << choice(p, 64)) - choice(p, 2);
    case 2: return ~choice(p, 3);
    default: return choice(p, UINT64_MAX);
    }
}

const char *prop_word(us_prop *p, const char *const *words, size_t n) {
    return words[choice(p, n)];
}

void prop_bytes(us_prop *p, void *out, size_t n) {
    for (size_t i = 0; i < n; i++) ((unsigned char *)out)[i] = (unsigned char)choice(p, 256);
}

static void say(us_prop *p, const char *fmt, va_list ap) US_PRINTF(2, 0);
static void say(us_prop *p, const char *fmt, va_list ap) {
    char text[1024];
    vsnprintf(text, sizeof text, fmt, ap);
    us_buf_printf(&p->said, "    %s\n", text);
}

void prop_say(us_prop *p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(p, fmt, ap);
    va_end(ap);
}

bool prop_wrong(us_prop *p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(p, fmt, ap);
    va_end(ap);
    return false;
}

typedef struct shrinker {
    bool (*property)(us_prop *, void *);
    void *arg;
    us_prop *best; /* the smallest failing tape */
    int runs, found;
} shrinker;

/* Does this tape fail too? If so it becomes the best. Only draws that were really taken are kept. */
static bool fails(shrinker *s, const uint64_t *tape, size_t n) {
    if (s->runs >= SHRINK_RUNS) return false;
    s->runs++;
    us_prop p = {.replay = true};
    p.tape = us_malloc((n + 1) * sizeof *tape);
    if (!p.tape) return false;
    if (n) memcpy(p.tape, tape, n * sizeof *tape);
    p.n_tape = n;
    bool bad = !s->property(&p, s->arg);
    if (p.at < p.n_tape) p.n_tape = p.at;
    if (bad) {
        us_free(s->best->tape);
        us_buf_free(&s->best->said);
        *s->best = p;
        s->found++;
        return true;
    }
    us_free(p.tape);
    us_buf_free(&p.said);
    return false;
}

/* Leave out runs of choices, long ones first. */
static bool delete_pass(shrinker *s, uint64_t *scratch) {
    bool better = false;
    for (size_t len = s->best->n_tape; len >= 1; len /= 2) {
        for (size_t at = 0; at + len <= s->best->n_tape;) {
            size_t n = s->best->n_tape;
            memcpy(scratch, s->best->tape, at * sizeof *scratch);
            memcpy(scratch + at, s->best->tape + at + len, (n - at - len) * sizeof *scratch);
            if (fails(s, scratch, n - len))
                better = true;
            else
                at += len;
        }
    }
    return better;
}

/* Make each choice as small as the failure allows: 0 at once, else by halving the distance, then by one. */
static bool lower_pass(shrinker *s, uint64_t *scratch) {
    bool better = false;
    for (size_t i = 0; i < s->best->n_tape; i++) {
        uint64_t low = 0; /* smallest not known to pass */
        while (i < s->best->n_tape && s->best->tape[i] > low) {
            uint64_t now = s->best->tape[i], middle = low + (now - low) / 2;
            size_t n = s->best->n_tape;
            memcpy(scratch, s->best->tape, n * sizeof *scratch);
            scratch[i] = low == 0 && middle > 1 ? 0 : middle;
            uint64_t tried = scratch[i];
            if (fails(s, scratch, n))
                better = true;
            else
                low = tried + 1;
        }
    }
    return better;
}

/* Lower one choice and leave out a later one: shortens a list whose length was drawn before its elements. */
static bool shorten_pass(shrinker *s, uint64_t *scratch) {
    bool better = false;
    for (size_t i = 0; i < s->best->n_tape; i++) {
        for (size_t j = i + 1; j < s->best->n_tape && s->best->tape[i] > 0; j++) {
            size_t n = s->best->n_tape;
            memcpy(scratch, s->best->tape, j * sizeof *scratch);
            memcpy(scratch + j, s->best->tape + j + 1, (n - j - 1) * sizeof *scratch);
            scratch[i]--;
            if (fails(s, scratch, n - 1)) {
                better = true;
                j--;
            }
        }
    }
    return better;
}

static void shrink(shrinker *s) {
    uint64_t *scratch = us_malloc((CHOICES_MAX + 1) * sizeof *scratch);
    if (!scratch) return;
    bool better = true;
    while (better && s->runs < SHRINK_RUNS) {
        better = delete_pass(s, scratch);
        better |= lower_pass(s, scratch);
        better |= shorten_pass(s, scratch);
    }
    us_free(scratch);
}

void prop_try(bool (*property)(us_prop *, void *), void *arg, int cases, uint64_t seed, prop_report *out) {
    *out = (prop_report){.seed = seed};
    for (int i = 0; i < cases && !out->failed; i++) {
        us_prop p = {.seed = seed, .stream = (uint64_t)i};
        if (!property(&p, arg)) {
            shrinker s = {property, arg, &p, 0, 0};
            shrink(&s);
            out->failed = true;
            out->i_case = i;
            out->n_shrinks = s.found;
            out->n_choices = p.n_tape;
            snprintf(out->text, sizeof out->text, "%s", us_buf_text(&p.said));
        }
        us_free(p.tape);
        us_buf_free(&p.said);
    }
}

static uint64_t from_environment(const char *name, uint64_t def) {
    const char *z = getenv(name);
    uint64_t v = def;
    return z && us_str_to_u64(us_str_z(z), &v) ? v : def;
}

void prop_run(const char *name, bool (*property)(us_prop *, void *), void *arg, int cases) {
    uint64_t times = from_environment("US_PROP_CASES", 1);
    prop_report r;
    prop_try(property, arg, times > 1000 ? cases * 1000 : cases * (int)times, from_environment("US_PROP_SEED", 1), &r);
    if (!r.failed) return;
    fprintf(stderr, "%s: case %d of seed %llu fails (US_PROP_SEED repeats it); smallest case, after %d steps:\n%s",
            name, r.i_case, (unsigned long long)r.seed, r.n_shrinks, r.text);
    fail_msg("property %s", name);
}

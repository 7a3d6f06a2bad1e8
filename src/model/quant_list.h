/**
 * Patterns of quantisation lists: `re:` regular expressions and globs over module names (rule 8a of fixtures/checkpoints/README.md).
 *
 * Patterns come from outside: length, match steps, depth and memory are limited, and running into a limit is an error, never "no match".
 * Used by structure (which modules may be stored differently) and by proxy (which entries must change). Tests: tests/unit/test_quant_list.c.
 */
#ifndef US_MODEL_QUANT_LIST_H
#define US_MODEL_QUANT_LIST_H

#include "base/str.h"

enum { US_QUANT_PATTERN_MAX = 8192 };

typedef struct us_quant_pattern us_quant_pattern;

/** Does the entry start with `re:` or hold `*` or `?`? */
bool us_quant_is_pattern(us_str entry);
/** Compile. US_E_REFUSED, class "regex" for a pattern that PCRE2 does not accept, "limit" for one that is too long. entry is copied. */
us_status us_quant_pattern_create(us_str entry, us_quant_pattern **out, us_err *err) US_WARN_UNUSED;
void us_quant_pattern_free(us_quant_pattern *p);
/**
 * `re:` patterns match from the start of the name, not necessarily to its end; globs cover the whole name, `*` crosses dots, `[..]` is a
 * class. US_E_LIMIT, class "regex", when matching takes too long. Not thread-safe on one pattern.
 */
us_status us_quant_pattern_match(us_quant_pattern *p, us_str name, bool *out, us_err *err) US_WARN_UNUSED;

#endif

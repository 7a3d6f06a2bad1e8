/**
 * Comparing configurations: which keys differ, and whether a key is about size or about behaviour (requirement 25, case T01).
 *
 * A size key (widths, counts of layers and experts) makes a model smaller; any other key changes what the model does. The number of
 * experts a token takes is a size by its nature but changes the routing margin, so its change counts as behaviour.
 * Tests: tests/e2e/test_fix_cases.c.
 */
#ifndef US_PROXY_CONFIG_COMPARE_H
#define US_PROXY_CONFIG_COMPARE_H

#include "io/json.h"

typedef enum us_key_kind { US_KEY_SIZE, US_KEY_TOP_K, US_KEY_BEHAVIOUR } us_key_kind;

typedef struct us_key_difference {
    us_str path; /* in the arena */
    us_key_kind kind;
    us_str a, b; /* raw values; p NULL = absent; long ones are cut by whoever shows them */
} us_key_difference;

us_key_kind us_config_key_kind(us_str key);
/**
 * Differences of two documents as JSON values: integers and reals told apart, order of keys free, numbers by their digits. Sorted as a
 * walk over a meets them, then keys that only b has. At most max are kept (all are counted in *n). Objects are entered, arrays compared whole.
 */
us_status us_config_compare(const us_json_doc *a, const us_json_doc *b, us_arena *arena, us_key_difference *out, size_t max, size_t *n, us_err *err) US_WARN_UNUSED;
/** Equal as JSON values? */
bool us_json_equal(const us_json_doc *a, us_json_ref x, const us_json_doc *b, us_json_ref y);

#endif

/**
 * What the tests of proxy share: making and verifying one in this process, and comparing a written folder with a reference folder as
 * fixtures/checkpoints/README.md "What is compared" says.
 */
#ifndef US_TESTS_PROXY_H
#define US_TESTS_PROXY_H

#include "io/checkpoint.h"
#include "support/support.h"
#include "understudy/us_proxy.h"

/** A document read from a file; fails the test when it is none. The text lives until the process ends. */
us_json_doc test_json(const char *path);
/** Member as C string; fails the test when it is absent. */
const char *test_json_string(const us_json_doc *d, us_json_ref object, const char *key);

/** us_proxy_make with `threads` threads; sizes ends with 0 entries of n. */
us_status test_proxy(const us_proxy_request *r, int threads, us_err *err);
/** us_proxy_verify; returns its status. */
us_status test_verify(const char *src, const char *dst, bool ignore_manifest, us_err *err);

/** The first difference between a written proxy and a reference, as a text, or NULL. src: for header metadata. */
const char *test_proxy_difference(const char *src, const char *reference, const char *made);

/** The source folder of a case of fixtures/checkpoints (a copy with links restored where the case lies in a hub cache). */
const char *test_case_source(const char *case_folder, const us_json_doc *case_json);

#endif

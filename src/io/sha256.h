/** SHA-256 by libcrypto (uses the SHA instructions where there are any). Tests: tests/unit/test_fs.c. */
#ifndef US_IO_SHA256_H
#define US_IO_SHA256_H

#include "base/str.h"

typedef struct us_sha256 us_sha256;
us_status us_sha256_create(us_sha256 **out, us_err *err) US_WARN_UNUSED;
void us_sha256_free(us_sha256 *h);
void us_sha256_reset(us_sha256 *h);
void us_sha256_add(us_sha256 *h, const void *p, size_t n);
/** Lower-case hex, terminated. The state must be reset before it is used again. */
void us_sha256_hex(us_sha256 *h, char out[65]);

#endif

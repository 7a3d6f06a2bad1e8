/**
 * Running over the cases of fixtures/hostile/<folder>/expect.json: each must be accepted or refused as it says, for one of the listed classes.
 * Include the cmocka block before this header.
 */
#ifndef US_TESTS_HOSTILE_H
#define US_TESTS_HOSTILE_H

#include "support/support.h"

/** Calls open on every file or folder of the set; it must release all it made, also on success. */
void hostile_each(const char *folder, us_status (*open)(const char *path, us_err *err));

#endif

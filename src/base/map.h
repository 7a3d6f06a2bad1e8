/**
 * Hash map from byte strings to 32-bit numbers (usually indices into an array). Keys are borrowed: they must outlive
 * the map. Open addressing, seeded hash, grows by doubling. Zero-initialise. Tests: tests/unit/test_base.c.
 */
#ifndef US_BASE_MAP_H
#define US_BASE_MAP_H

#include "base/str.h"

typedef struct us_map_slot {
    us_str key;
    uint32_t value;
    uint32_t hash;
} us_map_slot;

typedef struct us_map {
    us_map_slot *slots; /* key.p == NULL: empty */
    size_t n, cap;
} us_map;

#define US_MAP_NONE UINT32_MAX

void us_map_free(us_map *m);
/** Value of key, or US_MAP_NONE. */
uint32_t us_map_get(const us_map *m, us_str key);
/**
 * Insert unless present. Returns false only when out of memory. *old = the value already there, or US_MAP_NONE when
 * inserted (old may be NULL).
 */
bool us_map_put(us_map *m, us_str key, uint32_t value, uint32_t *old) US_WARN_UNUSED;
/** Replace or insert; false when out of memory. */
bool us_map_set(us_map *m, us_str key, uint32_t value) US_WARN_UNUSED;
/** Room for n keys without growing. */
bool us_map_reserve(us_map *m, size_t n) US_WARN_UNUSED;

#endif

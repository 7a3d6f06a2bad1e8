/**
 * The one way to get memory: counted, with a fail-on-the-nth-call switch for the out-of-memory tests, and an arena.
 *
 * Raw malloc/free appear only in alloc.c (the tidy test checks). Sizes that come from products of outside numbers go
 * through us_mul_size first. Tests: tests/unit/test_base.c.
 */
#ifndef US_BASE_ALLOC_H
#define US_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** n bytes, 16-byte aligned, or NULL. n = 0 gives a unique non-NULL pointer. */
void *us_malloc(size_t n);
/** count*size zeroed bytes; NULL also when the product overflows. */
void *us_calloc(size_t count, size_t size);
/** p may be NULL. On failure p is untouched and NULL returned. */
void *us_realloc(void *p, size_t n);
/** 64-byte aligned; released with us_free. */
void *us_malloc_aligned(size_t n);
/** As us_malloc_aligned, asking the system for large pages where whole ones fit: for tables and matrices that are read in no order. */
void *us_malloc_large(size_t n, bool zero);
/** NULL is fine. */
void us_free(void *p);
char *us_strdup(const char *z);
char *us_strndup(const char *p, size_t n);

/** *out = a*b; false on overflow (out untouched). */
static inline bool us_mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

/** Counters over the whole process. Bytes as asked for, without overhead. */
typedef struct us_alloc_stats {
    uint64_t live_bytes, peak_bytes, live_blocks, calls;
} us_alloc_stats;
us_alloc_stats us_alloc_get_stats(void);
/** Make the n-th allocation from now (1 = next) and all after it fail; 0 = never. For tests. Process-wide. */
void us_alloc_fail_at(uint64_t n);
/** Did an allocation fail because of us_alloc_fail_at since it was last set? */
bool us_alloc_failed(void);

/** Bump allocator: many small things that die together. Zero-initialise. Pointers stay valid until reset or free. */
typedef struct us_arena {
    struct us_arena_block *head;
    size_t used, block_size; /* block_size 0 = 64 KiB */
} us_arena;

/** n bytes, 16-byte aligned, not zeroed, or NULL. */
void *us_arena_alloc(us_arena *a, size_t n);
void *us_arena_calloc(us_arena *a, size_t count, size_t size);
/** A terminated copy of n bytes, or NULL. */
char *us_arena_strndup(us_arena *a, const char *p, size_t n);
void us_arena_free(us_arena *a);

/** Grow a typed array so that one more fits: returns false when out of memory. cap and array are updated. */
bool us_grow(void *array_of_pointer, size_t *cap, size_t need, size_t elem_size);

#endif

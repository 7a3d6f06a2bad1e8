/* Counted allocator and arena. Each block carries its size in front, so that freeing can count. */
#define _DEFAULT_SOURCE
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LARGE = 2 << 20, LARGE_MOVED = 64 << 20 }; /* a large page; above LARGE_MOVED a block grows in place, so that it is never there twice */
enum { HEADER = 64 }; /* keeps 64-byte alignment of what follows; plain blocks use 16 of it */

typedef struct block_head {
    size_t size;
    void *base; /* what malloc returned */
} block_head;
_Static_assert(sizeof(block_head) <= 16, "the head stands in the 16 bytes before the block");

static atomic_uint_fast64_t live_bytes, peak_bytes, live_blocks, calls;
static atomic_uint_fast64_t fail_at; /* 0 = off, else the call number from which on allocations fail */
static atomic_bool failed;

static bool must_fail(void) {
    uint64_t n = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1;
    uint64_t limit = atomic_load_explicit(&fail_at, memory_order_relaxed);
    if (limit == 0 || n < limit) return false;
    atomic_store(&failed, true);
    return true;
}

static void count(size_t plus, size_t minus) {
    uint64_t now = atomic_fetch_add_explicit(&live_bytes, (uint64_t)plus - (uint64_t)minus, memory_order_relaxed) +
                   (uint64_t)plus - (uint64_t)minus;
    uint64_t peak = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
    while (now > peak && (int64_t)now > 0 && !atomic_compare_exchange_weak(&peak_bytes, &peak, now)) {
    }
}

static block_head *head_of(void *p) {
    return (block_head *)(void *)((char *)p - 16);
}

static void *place(void *base, size_t pad, size_t n) {
    if (!base) return NULL;
    char *p = (char *)base + pad;
    *head_of(p) = (block_head){n, base};
    count(n, 0);
    atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    return p;
}

void *us_malloc(size_t n) {
    if (must_fail() || n > SIZE_MAX / 2) return NULL;
    return place(malloc(n + 16), 16, n);
}

void *us_calloc(size_t count_, size_t size) {
    size_t n;
    if (!us_mul_size(count_, size, &n) || n > SIZE_MAX / 2 || must_fail()) return NULL;
    return place(calloc(1, n + 16), 16, n);
}

void *us_malloc_aligned(size_t n) {
    if (must_fail() || n > SIZE_MAX / 2) return NULL;
    size_t total = (n + HEADER + 63) & ~(size_t)63;
    return place(aligned_alloc(64, total), HEADER, n);
}

void *us_malloc_large(size_t n, bool zero) {
    if (n < LARGE) {
        void *small = us_malloc_aligned(n);
        if (small && zero) memset(small, 0, n);
        return small;
    }
    void *base;
    if (must_fail() || n > SIZE_MAX / 2 || posix_memalign(&base, LARGE, (n + HEADER + 63) & ~(size_t)63) != 0) return NULL;
#if defined(MADV_HUGEPAGE)
    (void)madvise(base, (n + HEADER) / LARGE * LARGE, MADV_HUGEPAGE); /* a wish */
#endif
    char *p = place(base, HEADER, n);
    if (zero) memset(p, 0, n);
    return p;
}

void us_free(void *p) {
    if (!p) return;
    block_head h = *head_of(p);
    count(0, h.size);
    atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    free(h.base);
}

void *us_realloc(void *p, size_t n) {
    if (!p) return us_malloc(n);
    block_head h = *head_of(p);
    bool aligned = (char *)h.base + 16 != (char *)p;
    if (aligned || (n > h.size && n >= LARGE && n <= LARGE_MOVED)) { /* moved by hand: to keep it aligned, or into large pages, which cost less than the faults of small ones */
        void *q = n >= LARGE ? us_malloc_large(n, false) : us_malloc_aligned(n);
        if (!q) return NULL;
        memcpy(q, p, h.size < n ? h.size : n);
        us_free(p);
        return q;
    }
    if (must_fail() || n > SIZE_MAX / 2) return NULL;
    void *base = realloc(h.base, n + 16);
    if (!base) return NULL;
    char *q = (char *)base + 16;
    *head_of(q) = (block_head){n, base};
    count(n, h.size);
    return q;
}

char *us_strndup(const char *p, size_t n) {
    char *q = us_malloc(n + 1);
    if (!q) return NULL;
    if (n) memcpy(q, p, n);
    q[n] = 0;
    return q;
}

char *us_strdup(const char *z) {
    return us_strndup(z, strlen(z));
}

us_alloc_stats us_alloc_get_stats(void) {
    return (us_alloc_stats){atomic_load(&live_bytes), atomic_load(&peak_bytes), atomic_load(&live_blocks),
                            atomic_load(&calls)};
}

void us_alloc_fail_at(uint64_t n) {
    atomic_store(&failed, false);
    atomic_store(&fail_at, n ? atomic_load(&calls) + n : 0);
}

bool us_alloc_failed(void) {
    return atomic_load(&failed);
}

struct us_arena_block {
    struct us_arena_block *next;
    size_t cap;
};
enum { ARENA_HEAD = 32 };
_Static_assert(sizeof(struct us_arena_block) <= ARENA_HEAD, "block head");

void *us_arena_alloc(us_arena *a, size_t n) {
    if (n > SIZE_MAX / 4) return NULL;
    size_t need = (n + 15) & ~(size_t)15;
    if (!a->head || need > a->head->cap - a->used) {
        size_t cap = a->block_size ? a->block_size : 65536;
        bool large = need > cap / 4;
        if (large) cap = need;
        struct us_arena_block *b = us_malloc(ARENA_HEAD + cap);
        if (!b) return NULL;
        b->cap = cap;
        if (large && a->head) { /* its own block behind the current one, which stays open */
            b->next = a->head->next;
            a->head->next = b;
            return (char *)b + ARENA_HEAD;
        }
        b->next = a->head;
        a->head = b;
        a->used = 0;
    }
    void *p = (char *)a->head + ARENA_HEAD + a->used;
    a->used += need;
    return p;
}

void *us_arena_calloc(us_arena *a, size_t count_, size_t size) {
    size_t n;
    if (!us_mul_size(count_, size, &n)) return NULL;
    void *p = us_arena_alloc(a, n);
    if (p) memset(p, 0, n);
    return p;
}

char *us_arena_strndup(us_arena *a, const char *p, size_t n) {
    if (n == SIZE_MAX) return NULL;
    char *q = us_arena_alloc(a, n + 1);
    if (!q) return NULL;
    if (n) memcpy(q, p, n);
    q[n] = 0;
    return q;
}

void us_arena_free(us_arena *a) {
    for (struct us_arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        us_free(b);
    }
    a->head = NULL;
    a->used = 0;
}

bool us_grow(void *array_of_pointer, size_t *cap, size_t need, size_t elem_size) {
    if (need <= *cap) return true;
    size_t c = *cap < 8 ? 8 : *cap, bytes;
    while (c < need) c = c > SIZE_MAX / 2 ? need : c * 2;
    void *old, *p;
    memcpy(&old, array_of_pointer, sizeof old);
    if (!us_mul_size(c, elem_size, &bytes)) return false;
    p = us_realloc(old, bytes);
    if (!p) return false;
    memcpy(array_of_pointer, &p, sizeof p);
    *cap = c;
    return true;
}

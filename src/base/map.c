/* Open-addressing string map. */
#include "base/map.h"

#include "base/alloc.h"

static uint32_t hash_of(us_str key) {
    return (uint32_t)us_str_hash(key, 0x5eed);
}

/* Keys of length 0 are legal, so an empty slot is told by its NULL pointer; us_map_put replaces a NULL key pointer by
 * "". */
static us_map_slot *probe(const us_map *m, us_str key, uint32_t h) {
    size_t i = h & (m->cap - 1);
    while (m->slots[i].key.p && !(m->slots[i].hash == h && us_str_eq(m->slots[i].key, key))) i = (i + 1) & (m->cap - 1);
    return &m->slots[i];
}

void us_map_free(us_map *m) {
    us_free(m->slots);
    *m = (us_map){0};
}

uint32_t us_map_get(const us_map *m, us_str key) {
    if (m->cap == 0) return US_MAP_NONE;
    const us_map_slot *s = probe(m, key, hash_of(key));
    return s->key.p ? s->value : US_MAP_NONE;
}

static bool rehash(us_map *m, size_t cap) {
    us_map_slot *slots = us_calloc(cap, sizeof *slots);
    if (!slots) return false;
    us_map bigger = {slots, m->n, cap};
    for (size_t i = 0; i < m->cap; i++)
        if (m->slots[i].key.p) *probe(&bigger, m->slots[i].key, m->slots[i].hash) = m->slots[i];
    us_free(m->slots);
    *m = bigger;
    return true;
}

bool us_map_reserve(us_map *m, size_t n) {
    size_t cap = m->cap ? m->cap : 16;
    while (cap < n + n / 2 + 1) {
        if (cap > SIZE_MAX / 2) return false;
        cap *= 2;
    }
    return cap == m->cap || rehash(m, cap);
}

bool us_map_put(us_map *m, us_str key, uint32_t value, uint32_t *old) {
    if (!us_map_reserve(m, m->n + 1)) return false;
    uint32_t h = hash_of(key);
    us_map_slot *s = probe(m, key, h);
    if (old) *old = s->key.p ? s->value : US_MAP_NONE;
    if (s->key.p) return true;
    *s = (us_map_slot){{key.p ? key.p : "", key.n}, value, h};
    m->n++;
    return true;
}

bool us_map_set(us_map *m, us_str key, uint32_t value) {
    uint32_t old;
    if (!us_map_put(m, key, value, &old)) return false;
    if (old != US_MAP_NONE) probe(m, key, hash_of(key))->value = value;
    return true;
}

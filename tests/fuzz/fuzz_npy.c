/* Fuzz target: .npy and .npz, described and loaded. */
#include <stdlib.h>

#include "base/alloc.h"
#include "io/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t live = us_alloc_get_stats().live_blocks;
    us_str text = {(const char *)data, size};
    us_npy_set described = {0}, loaded = {0};
    us_err err = {0};
    us_status a = us_npy_parse(NULL, text, false, 0, &described, &err);
    require(a == US_OK || (err.cls[0] && err.what[0]));
    us_status b = us_npy_parse(NULL, text, true, 1 << 20, &loaded, &err);
    require(a == US_OK || b != US_OK); /* what cannot be described cannot be loaded */
    for (size_t i = 0; b == US_OK && i < loaded.n; i++) {
        int64_t v;
        if (loaded.arrays[i].count) (void)us_npy_i64(&loaded.arrays[i], loaded.arrays[i].count - 1, &v);
        require(loaded.arrays[i].count == described.arrays[i].count);
    }
    us_npy_set_free(&described);
    us_npy_set_free(&loaded);
    require(us_alloc_get_stats().live_blocks == live);
    return 0;
}

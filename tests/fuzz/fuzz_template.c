/* Fuzz target: a chat template, then a request, with a NUL between them. Every rendering ends within its limits and leaves nothing behind. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "understudy/us_chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char messages[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"h\xc3\xa9\"}]},"
                                   "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1.5}}}]}],\"add_generation_prompt\":true}";
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    size_t n = cut ? (size_t)(cut - data) : size;
    const char *request = cut ? (const char *)cut + 1 : messages;
    const us_chat_limits limits = {.steps = 20000, .memory_bytes = 1 << 20, .output_bytes = 1 << 18};
    uint64_t live = us_alloc_get_stats().live_blocks;
    us_err err = {0};
    us_chat *chat = NULL;
    us_status s = us_chat_parse((const char *)data, n, &chat, &err);
    require(s == US_OK || (err.cls[0] && err.what[0]));
    if (s == US_OK) {
        us_chat_text t = {0};
        s = us_chat_render(chat, request, cut ? size - n - 1 : sizeof messages - 1, "2026-02-28T23:59:59", &limits, &t, &err);
        require(s == US_OK || (err.cls[0] && err.what[0]));
        require(s != US_OK || t.n <= limits.output_bytes);
        us_chat_text_free(&t);
    }
    us_chat_free(chat);
    require(us_alloc_get_stats().live_blocks == live);
    return 0;
}

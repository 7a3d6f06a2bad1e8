/* Checkpoint folders: what the index decides, notes, shards that are no files, cut shards, links, lack of memory,
 * threads. The hostile folders are in test_fix_safetensors.c. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "io/checkpoint.h"
#include "support/support.h"

/* A shard of U8[4] tensors, one for each letter of names; all bytes of a tensor are `fill`. */
static void put_shard(const char *folder, const char *name, const char *names, char fill) {
    static const uint64_t shape[1] = {4};
    us_st_tensor t[32] = {0};
    size_t n = strlen(names);
    us_buf b = {0};
    us_err err = {0};
    for (size_t i = 0; i < n; i++) t[i] = (us_st_tensor){{names + i, 1}, US_DTYPE_U8, 1, shape, 4 * i, 4 * i + 4};
    assert_us_ok(us_st_write_header(&b, t, n, NULL, 0, &err), &err);
    for (size_t i = 0; i < 4 * n; i++) us_buf_c(&b, fill);
    test_write(test_format("%s/%s", folder, name), b.p, b.n);
    us_buf_free(&b);
}

static void put_index(const char *folder, const char *metadata, const char *map) {
    test_write_text(test_format("%s/model.safetensors.index.json", folder),
                    test_format("{%s\"weight_map\":{%s}}", metadata, map));
}

#define MAP "\"x\":\"a.safetensors\",\"y\":\"b.safetensors\""

/* x in a, y in b. */
static const char *two_shards(void) {
    const char *dir = test_temp_dir();
    test_write_text(test_format("%s/config.json", dir), "{}");
    put_shard(dir, "a.safetensors", "x", 'a');
    put_shard(dir, "b.safetensors", "y", 'b');
    put_index(dir, "\"metadata\":{\"total_size\":8},", MAP);
    return dir;
}

static us_checkpoint *open_ok(us_ctx *ctx, const char *dir, unsigned flags) {
    us_checkpoint *c = NULL;
    us_err err = {0};
    assert_us_ok(us_checkpoint_open(ctx, dir, flags, &c, &err), &err);
    return c;
}

/* Refused with this class; says all that `has` holds, in what or where. */
static void assert_refused(const char *dir, unsigned flags, const char *cls, const char *has) {
    us_checkpoint *c = NULL;
    us_err err = {0};
    char line[3 * US_ERR_TEXT];
    uint64_t live = us_alloc_get_stats().live_blocks;
    us_status s = us_checkpoint_open(NULL, dir, flags, &c, &err);
    us_err_line(&err, line, sizeof line);
    assert_int_not_equal(s, US_OK);
    assert_int_equal(s, err.code);
    assert_null(c);
    if (strcmp(err.cls, cls) != 0 || !strstr(line, has)) fail_msg("expected [%s] with \"%s\", got: %s", cls, has, line);
    assert_int_equal(us_alloc_get_stats().live_blocks, live);
}

static const char *note_of_class(us_ctx *ctx, const char *cls) {
    for (int i = 0; i < us_ctx_n_notes(ctx); i++)
        if (strcmp(us_ctx_note_class(ctx, i), cls) == 0) return us_ctx_note(ctx, i);
    return NULL;
}

static us_ctx *context(int threads) {
    us_ctx *ctx = NULL;
    us_err err = {0};
    assert_us_ok(us_ctx_create(threads, 1, &ctx, &err), &err);
    return ctx;
}

static char first_byte(const us_checkpoint *c, const char *name) {
    char b[4];
    us_err err = {0};
    const us_ck_tensor *t = us_ck_find(c, us_str_z(name));
    assert_non_null(t);
    assert_us_ok(us_ck_read(c, t, 0, b, 4, &err), &err);
    assert_int_equal(us_ck_read(c, t, 1, b, 4, &err), US_E_INVAL);
    assert_int_equal(us_ck_read(c, t, UINT64_MAX, b, 2, &err), US_E_INVAL);
    return b[0];
}

static void the_index_decides(void **state) {
    (void)state;
    const char *dir = two_shards();
    us_ctx *ctx = context(1);
    us_checkpoint *c = open_ok(ctx, dir, 0);
    assert_int_equal(us_ctx_n_notes(ctx), 0);
    assert_int_equal(c->n_tensors, 2);
    us_checkpoint_free(c);
    put_shard(dir, "a.safetensors", "yxz", 'a'); /* a stale y, and a z that the map does not know */
    put_shard(dir, "c.safetensors", "x", 'c');
    c = open_ok(ctx, dir, 0);
    assert_int_equal(c->n_tensors, 2);
    assert_int_equal(c->n_shards, 2);
    assert_int_equal(c->n_stale, 2);
    assert_int_equal(first_byte(c, "x"), 'a');
    assert_int_equal(first_byte(c, "y"), 'b');
    assert_null(us_ck_find(c, US_LIT("z")));
    assert_non_null(strstr(note_of_class(ctx, "note-unlisted"), "2 tensors"));
    assert_non_null(strstr(note_of_class(ctx, "note-not-copied"), "c.safetensors"));
    assert_null(note_of_class(ctx, "note-total-size"));
    us_checkpoint_free(c);
    us_ctx_free(ctx);
}

static void total_size_is_noted_never_trusted(void **state) {
    (void)state;
    static const struct {
        const char *metadata;
        bool noted;
    } cases[] = {{"\"metadata\":{\"total_size\":8},", false},
                 {"\"metadata\":{\"total_size\":8.0},", false},
                 {"\"metadata\":{\"total_size\":9},", true},
                 {"\"metadata\":{\"total_size\":\"8\"},", true},
                 {"\"metadata\":null,", true},
                 {"", true},
                 {"\"metadata\":{\"total_size\":1e400},", true}};
    const char *dir = two_shards();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_index(dir, cases[i].metadata, MAP);
        us_ctx *ctx = context(1);
        us_checkpoint_free(open_ok(ctx, dir, 0));
        assert_int_equal(note_of_class(ctx, "note-total-size") != NULL, cases[i].noted);
        us_ctx_free(ctx);
    }
    put_index(dir, "\"metadata\":{\"total_size\":Infinity},", MAP); /* only config.json may hold that word */
    assert_refused(dir, 0, "json", "index.json");
    put_index(dir, "", MAP);
    test_write_text(test_format("%s/hf_quant_config.json", dir), "[NaN]");
    assert_refused(dir, 0, "json", "hf_quant_config.json");
    unlink(test_format("%s/hf_quant_config.json", dir));
    test_write_text(test_format("%s/config.json", dir), "{\"time_step_limit\":[0.0,Infinity]}");
    us_checkpoint_free(open_ok(NULL, dir, 0));
}

static void shards_must_be_whole_files(void **state) {
    (void)state;
    const char *dir = two_shards(), *b = test_format("%s/b.safetensors", dir);
    struct stat st;
    assert_int_equal(stat(b, &st), 0);
    assert_int_equal(truncate(b, st.st_size - 3), 0);
    assert_refused(dir, 0, "offset-range", "3 bytes");
    assert_refused(dir, 0, "offset-range", "b.safetensors");
    assert_refused(dir, 0, "offset-range", "\"y\"");
    us_checkpoint *c = open_ok(NULL, dir, US_CK_HEADERS_ONLY);
    char bytes[4];
    us_err err = {0};
    assert_int_equal(us_ck_read(c, us_ck_find(c, US_LIT("y")), 0, bytes, 4, &err),
                     US_E_FORMAT); /* what is not there is not read */
    assert_string_equal(err.cls, "truncated");
    us_checkpoint_free(c);
    assert_int_equal(truncate(b, st.st_size + 4), 0);
    assert_refused(dir, 0, "trailing-data", "4 bytes");
    assert_int_equal(truncate(b, 0), 0);
    assert_refused(dir, 0, "short-file", "b.safetensors");
    assert_int_equal(unlink(b), 0);
    assert_refused(dir, 0, "shard-missing", "1 tensors");
    assert_int_equal(mkfifo(b, 0600), 0);
    assert_refused(dir, 0, "shard-missing", "b.safetensors");
    unlink(b);
    assert_int_equal(mkdir(b, 0700), 0);
    assert_refused(dir, 0, "shard-missing", "b.safetensors");
    rmdir(b);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    assert_true(strlen(b) < sizeof a.sun_path);
    memcpy(a.sun_path, b, strlen(b) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof a), 0);
    assert_refused(dir, 0, "shard-missing", "b.safetensors");
    close(fd);
    unlink(b);
    assert_int_equal(symlink("/dev/zero", b), 0);
    assert_refused(dir, 0, "link", "/dev/zero");
    assert_refused(dir, US_CK_FOLLOW_LINKS, "shard-missing", "b.safetensors");
    unlink(b);
    assert_int_equal(symlink("b.safetensors", b), 0);
    assert_refused(dir, 0, "link", "circle");
}

static void documents_must_be_files(void **state) {
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors.index.json", "hf_quant_config.json"};
    for (size_t i = 0; i < 3; i++) {
        const char *dir = two_shards(), *path = test_format("%s/%s", dir, names[i]);
        unlink(path);
        assert_int_equal(mkfifo(path, 0600), 0);
        assert_refused(dir, 0, "not-a-file", names[i]); /* and does not hang */
        unlink(path);
        test_write_text(path, "{\"a\":1,\"a\":1}");
        assert_refused(dir, 0, "duplicate-key", names[i]);
        test_write_text(path, "{} x");
        assert_refused(dir, 0, "json", names[i]);
        test_write_text(path, "\"\xff\"");
        assert_refused(dir, 0, "json", names[i]);
    }
    const char *dir = two_shards();
    test_write_text(test_format("%s/config.json", dir), "[]");
    assert_refused(dir, 0, "type", "config.json");
    test_write_text(test_format("%s/config.json", dir), "");
    assert_refused(dir, 0, "json", "config.json");
    assert_int_equal(truncate(test_format("%s/config.json", dir), 16000001), 0);
    uint64_t peak = us_alloc_get_stats().peak_bytes;
    assert_refused(dir, 0, "limit", "config.json");
    assert_int_equal(us_alloc_get_stats().peak_bytes, peak); /* not read to find that out */
}

static void without_an_index(void **state) {
    (void)state;
    const char *dir = two_shards();
    unlink(test_format("%s/model.safetensors.index.json", dir));
    us_checkpoint *c = open_ok(NULL, dir, 0);
    assert_int_equal(c->n_tensors, 2);
    us_checkpoint_free(c);
    put_shard(dir, "b.safetensors", "xy", 'b');
    assert_refused(dir, 0, "tensor-twice", "a.safetensors and b.safetensors");
    put_shard(dir, "model.safetensors", "xz", 'm'); /* then it is the only one */
    us_ctx *ctx = context(1);
    c = open_ok(ctx, dir, 0);
    assert_int_equal(c->n_shards, 1);
    assert_int_equal(first_byte(c, "x"), 'm');
    assert_non_null(strstr(note_of_class(ctx, "note-not-copied"), "a.safetensors, b.safetensors"));
    us_checkpoint_free(c);
    us_ctx_free(ctx);
    const char *empty = test_temp_dir();
    test_write_text(test_format("%s/config.json", empty), "{}");
    assert_refused(empty, 0, "mismatch", "no weights");
    test_write_text(test_format("%s/pytorch_model-00001-of-00002.bin", empty), "x");
    assert_refused(empty, 0, "no-weights", "no safetensors file");
    c = open_ok(NULL, empty, US_CK_CONFIG_ONLY);
    assert_int_equal(c->n_shards, 0);
    us_checkpoint_free(c);
    c = open_ok(NULL, test_format("%s/config.json", empty), US_CK_CONFIG_ONLY);
    us_checkpoint_free(c);
    assert_refused(test_format("%s/config.json", empty), 0, "missing", "folder");
    assert_refused(test_format("%s/none", empty), 0, "missing", "no such");
}

static void other_files_are_sorted_into_two_heaps(void **state) {
    (void)state;
    const char *dir = two_shards();
    static const char *const files[] = {
        "README.md",      "vocab.bin",      "consolidated.00.bin", "original/model.safetensors",
        "sub/dir/t.json", "x.gguf",         "adapter_model.bin",   "other.safetensors.index.json",
        ".cache/x",       ".gitattributes", "understudy.json"};
    static const char *const copied[] = {".gitattributes", "README.md", "sub/dir/t.json", "vocab.bin"};
    static const char *const left[] = {"adapter_model.bin", "consolidated.00.bin", "original/model.safetensors",
                                       "other.safetensors.index.json", "x.gguf"};
    static const char *const folders[] = {"original", "sub/dir", ".cache"};
    for (size_t i = 0; i < 3; i++) test_mkdir(test_format("%s/%s", dir, folders[i]));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) test_write_text(test_format("%s/%s", dir, files[i]), "x");
    us_ctx *ctx = context(1);
    us_checkpoint *c = open_ok(ctx, dir, 0);
    assert_int_equal(c->n_others, 4);
    assert_int_equal(c->n_left_out, 5);
    for (size_t i = 0; i < 4; i++) assert_string_equal(c->others[i].name, copied[i]);
    for (size_t i = 0; i < 5; i++) assert_string_equal(c->left_out[i].name, left[i]);
    assert_non_null(strstr(note_of_class(ctx, "note-not-copied"), "and 2 more"));
    us_checkpoint_free(c);
    us_ctx_free(ctx);
}

/* The first fault by name is the one that is told, whatever the order of the index and the number of threads. */
static void errors_do_not_depend_on_order_or_threads(void **state) {
    (void)state;
    const char *dir = test_temp_dir();
    static const char *const maps[] = {"\"x\":\"c.safetensors\",\"y\":\"b.safetensors\",\"z\":\"a.safetensors\"",
                                       "\"z\":\"a.safetensors\",\"x\":\"c.safetensors\",\"y\":\"b.safetensors\""};
    char first[3 * US_ERR_TEXT] = "";
    put_shard(dir, "a.safetensors", "z", 'a');
    for (int m = 0; m < 2; m++)
        for (int threads = 1; threads <= 7; threads += 3) {
            us_ctx *ctx = context(threads);
            us_checkpoint *c = NULL;
            us_err err = {0};
            char line[3 * US_ERR_TEXT];
            put_index(dir, "", maps[m]);
            assert_int_not_equal(us_checkpoint_open(ctx, dir, 0, &c, &err), US_OK);
            us_err_line(&err, line, sizeof line);
            if (!first[0]) memcpy(first, line, sizeof first);
            assert_string_equal(line, first);
            us_ctx_free(ctx);
        }
    assert_non_null(strstr(first, "b.safetensors"));
}

static void survives_every_allocation_failure(void **state) {
    (void)state;
    const char *dir = two_shards();
    put_shard(dir, "a.safetensors", "xyz", 'a');
    put_shard(dir, "c.safetensors", "x", 'c');
    test_write_text(test_format("%s/config.json", dir), "{\"a\\n\":[1,\"\\u00e9\"]}");
    test_mkdir(test_format("%s/sub", dir));
    test_write_text(test_format("%s/sub/f", dir), "x");
    uint64_t live = us_alloc_get_stats().live_blocks;
    int failures = 0;
    for (uint64_t n = 1; n < 10000; n++) {
        us_err err = {0};
        us_checkpoint *c = NULL;
        us_alloc_fail_at(n);
        us_status s = us_checkpoint_open(NULL, dir, 0, &c, &err);
        bool failed = us_alloc_failed();
        us_alloc_fail_at(0);
        if (s == US_OK) us_checkpoint_free(c);
        assert_int_equal(us_alloc_get_stats().live_blocks, live);
        if (!failed) {
            assert_us_ok(s, &err);
            assert_true(failures > 20);
            return;
        }
        /* A note that found no memory may be lost; everything else must fail. */
        if (s != US_OK) assert_int_equal(s, US_E_NOMEM);
        failures++;
    }
    fail();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_index_decides),
        cmocka_unit_test(total_size_is_noted_never_trusted),
        cmocka_unit_test(shards_must_be_whole_files),
        cmocka_unit_test(documents_must_be_files),
        cmocka_unit_test(without_an_index),
        cmocka_unit_test(other_files_are_sorted_into_two_heaps),
        cmocka_unit_test(errors_do_not_depend_on_order_or_threads),
        cmocka_unit_test(survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

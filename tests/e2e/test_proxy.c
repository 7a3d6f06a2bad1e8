#define _POSIX_C_SOURCE 200809L
/**
 * `proxy` and `verify` from a bare clone: ladders, destinations, threads, layer cuts, bad input, interrupted and failing runs. The rules of
 * slicing are held against references in test_fix_checkpoints.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "support/proxy.h"
#include "support/tiny.h"

#define RUN(...) test_understudy((const char *[]){__VA_ARGS__, NULL})

static const char *make_source(const tiny_model *m) {
    const char *src = test_format("%s/src", test_temp_dir());
    tiny_write(src, m);
    return src;
}

static const char *beside(const char *src, const char *name) {
    return test_format("%s-%s", src, name);
}

static bool nothing_at(const char *dst) {
    return !test_exists(dst) && !test_exists(test_format("%s.understudy-partial", dst));
}

static void assert_same_tree(const char *a, const char *b) {
    const char *d = test_tree_difference(a, b);
    if (d) fail_msg("%s", d);
}

/* ---- what comes out ---- */

static void a_ladder_is_nested_and_proven(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){.experts = 16, .shards = 3}), *dst = beside(src, "ladder");
    test_run r = RUN("proxy", src, dst, "--experts", "4,8", "--select", "random", "--json");
    test_assert_done(&r);
    us_json_doc j = {0}, small = test_json(test_format("%s/e4/understudy.json", dst)), large = test_json(test_format("%s/e8/understudy.json", dst));
    us_err err = {0};
    assert_us_ok(us_json_doc_parse(&j, (us_str){r.out, r.n_out}, 0, &err), &err);
    assert_int_equal(us_json_count(&j, us_json_get(&j, 0, "rungs")), 2);
    us_json_ref a = us_json_get(&small, 0, "layers"), b = us_json_get(&large, 0, "layers");
    for (us_json_ref k = us_json_first(&small, a); k != US_JSON_NO; k = us_json_next(&small, a, us_json_next(&small, a, k))) {
        us_json_ref x = us_json_next(&small, a, k), y = us_json_get(&large, b, test_format("%.*s", US_STR_ARG(us_json_string(&small, k))));
        assert_int_equal(us_json_count(&small, x), 4);
        assert_int_equal(us_json_count(&large, y), 8);
        for (us_json_ref e = us_json_first(&small, x); e != US_JSON_NO; e = us_json_next(&small, x, e)) {
            bool in = false;
            for (us_json_ref f = us_json_first(&large, y); f != US_JSON_NO; f = us_json_next(&large, y, f)) in |= us_str_eq(us_json_raw(&small, e), us_json_raw(&large, f));
            assert_true(in);
        }
    }
    r = RUN("verify", src, dst);
    test_assert_done(&r);
    us_json_doc_free(&j);
    us_json_doc_free(&small);
    us_json_doc_free(&large);
}

static void threads_change_no_byte(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){.experts = 8, .shards = 2}), *one = beside(src, "t1");
    test_run r = RUN("proxy", src, one, "--experts", "4", "--select", "random", "--threads", "1");
    test_assert_done(&r);
    for (int n = 2; n <= 7; n += 5) {
        const char *dst = beside(src, test_format("t%d", n));
        r = RUN("proxy", src, dst, "--experts", "4", "--select", "random", "--threads", test_format("%d", n));
        test_assert_done(&r);
        assert_same_tree(one, dst);
    }
}

static void keep_ratio_takes_the_nearest_legal_size(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){.experts = 8, .top_k = 3});
    test_run r = RUN("proxy", src, beside(src, "x"), "--keep-ratio", "0.1", "--select", "first", "--dry-run", "--json");
    test_assert_done(&r);
    assert_non_null(strstr(r.out, "{\"experts\": 3, "));
    assert_non_null(strstr(r.err, "3 are kept"));
    r = RUN("proxy", src, beside(src, "x"), "--keep-ratio", "1.5", "--select", "first");
    test_assert_refused(&r, 1, "keep-ratio");
}

static void layers_are_cut_truly(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){.layers = 4, .config_more = "\"layer_types\": [\"a\", \"b\", \"c\", \"d\", \"tail\"],"}), *dst = beside(src, "cut");
    test_run r = RUN("proxy", src, dst, "--experts", "4", "--select", "first", "--layers", "0,2-3");
    test_assert_done(&r);
    assert_non_null(strstr(r.err, "note-list-longer"));
    const char *config = test_read(test_format("%s/config.json", dst), NULL), *manifest = test_read(test_format("%s/understudy.json", dst), NULL);
    assert_non_null(strstr(config, "\"num_hidden_layers\": 3"));
    assert_non_null(strstr(config, "[\"a\", \"c\", \"d\", \"tail\"]"));
    assert_non_null(strstr(manifest, "LAYERS WERE CUT"));
    for (int i = 0; i < 2; i++) {
        r = RUN("verify", src, dst, i ? "--ignore-manifest" : "--quiet");
        test_assert_done(&r);
    }
    r = RUN("inspect", dst);
    test_assert_done(&r);
    r = RUN("proxy", src, beside(src, "bad"), "--experts", "4", "--select", "first", "--layers", "3,1");
    test_assert_refused(&r, 1, "layers-list");
    assert_true(nothing_at(beside(src, "bad")));
}

static void no_layer_without_experts_remains(void **state) {
    (void)state;
    const char *root = test_data();
    (void)root;
    const char *src = make_source(&(tiny_model){.layers = 2});
    test_run r = RUN("proxy", src, beside(src, "none"), "--experts", "4", "--select", "first", "--layers", "0");
    test_assert_refused(&r, 1, "layers-list");
}

/* ---- destinations ---- */

static void destinations_are_looked_at_first(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){0}), *file = beside(src, "file");
    test_run r = RUN("proxy", src, src, "--experts", "4", "--select", "first");
    test_assert_refused(&r, 1, "destination");
    r = RUN("proxy", src, test_format("%s/in/side", src), "--experts", "4", "--select", "first");
    test_assert_refused(&r, 1, "destination");
    assert_false(test_exists(test_format("%s/in", src)));
    r = RUN("proxy", src, test_format("%s/..", src), "--experts", "4", "--select", "first", "--force");
    test_assert_refused(&r, 1, "destination");
    test_write_text(file, "x");
    r = RUN("proxy", src, file, "--experts", "4", "--select", "first", "--force");
    test_assert_refused(&r, 1, "destination");
    r = RUN("proxy", src, "/proc/self/understudy-test", "--experts", "4", "--select", "first");
    assert_int_equal(r.status, 1);
    assert_int_equal(r.n_out, 0);
}

static void force_deletes_only_what_the_tool_wrote(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){0}), *dst = beside(src, "out"), *mine = test_format("%s/mine/keep.txt", dst);
    test_run r = RUN("proxy", src, dst, "--experts", "4", "--select", "first");
    test_assert_done(&r);
    r = RUN("proxy", src, dst, "--experts", "6", "--select", "first");
    test_assert_refused(&r, 1, "exists");
    test_mkdir(test_format("%s/mine", dst));
    test_write_text(mine, "mine");
    r = RUN("proxy", src, dst, "--experts", "6,4", "--select", "first", "--force");
    test_assert_done(&r);
    assert_string_equal(test_read(mine, NULL), "mine");
    assert_false(test_exists(test_format("%s/config.json", dst)));
    r = RUN("proxy", src, dst, "--experts", "6", "--select", "first", "--force");
    test_assert_done(&r);
    assert_string_equal(test_read(mine, NULL), "mine");
    assert_false(test_exists(test_format("%s/e6", dst)));
    test_remove_tree(test_format("%s/mine", dst));
    r = RUN("verify", src, dst);
    test_assert_done(&r);
    const char *foreign = beside(src, "foreign");
    test_mkdir(foreign);
    test_write_text(test_format("%s/config.json", foreign), "{}");
    r = RUN("proxy", src, foreign, "--experts", "4", "--select", "first");
    test_assert_refused(&r, 1, "exists");
    r = RUN("proxy", src, foreign, "--experts", "4", "--select", "first", "--force");
    test_assert_refused(&r, 1, "exists");
    assert_string_equal(test_read(test_format("%s/config.json", foreign), NULL), "{}");
}

static void wrong_usage_is_exit_2(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){0}), *dst = beside(src, "x");
    const char *bad[][2] = {{"--experts", "four"}, {"--experts", "4,"}, {"--experts", "4 "}, {"--keep-ratio", "much"}, {"--nonsense", "1"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        test_run r = RUN("proxy", src, dst, bad[i][0], bad[i][1], "--select", "first");
        test_assert_refused(&r, 2, NULL);
    }
    test_run r = RUN("proxy", src, dst, "--select", "first");
    test_assert_refused(&r, 2, NULL);
    assert_true(nothing_at(dst));
    r = RUN("proxy", src, dst, "--experts", "4", "--select", "best");
    test_assert_refused(&r, 1, "select");
    r = RUN("proxy", src, dst, "--experts", "99999999999999999999", "--select", "first");
    test_assert_refused(&r, 1, "above-experts");
}

/* ---- lists ---- */

static void list_files_come_in_several_shapes(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){.experts = 4, .top_k = 1}), *want = NULL;
    const char *text[] = {"{\"layers\": {\"0\": [0, 2], \"1\": [1, 3]}}", "{\"0\": [0, 2], \"1\": [1, 3]}",
                          "{\"k\": 2, \"layers\": [0, 1], \"keep\": [[0, 2], [1, 3]]}", "{\"0\": [2, 0, 3, 1]}\n{\"1\": [3, 1, 0, 2]}\n"};
    for (int i = 0; i < 4; i++) {
        const char *list = test_format("%s.%d.json", src, i), *dst = beside(src, test_format("shape%d", i));
        test_write_text(list, text[i]);
        test_run r = RUN("proxy", src, dst, "--select", test_format("list:%s", list), "--experts", "2");
        test_assert_done(&r);
        const char *shard = test_format("%s/model.safetensors", dst);
        size_t n = 0, m = 0;
        if (!want) want = shard;
        const char *a = test_read(want, &n), *b = test_read(shard, &m);
        assert_true(n == m && memcmp(a, b, n) == 0);
        r = RUN("proxy", src, beside(src, "wrong"), "--select", test_format("list:%s", list), "--experts", "5");
        assert_int_equal(r.status, 1);
    }
    const char *bad[][2] = {{"{\"layers\": {\"0\": [0, 2]}}", "kept-missing-layer"}, {"{\"layers\": {\"0\": [0, 2], \"1\": [1]}}", "kept-lengths-differ"},
                            {"{\"layers\": {\"0\": [0, 2], \"1\": [1, 1]}}", "kept-duplicate"}, {"{\"layers\": {\"0\": [0, 2], \"1\": [1, 4]}}", "kept-range"},
                            {"{\"layers\": {\"0\": [0, 2], \"1\": [1, 1e0]}}", "kept-type"}, {"{\"layers\": {\"0\": [0, 2], \"1\": {}}}", "kept-type"},
                            {"{\"layers\": {\"0\": [0, 2], \"1\": [1, 3], \"7\": [1, 3]}}", "kept-unknown-layer"}, {"[1]", "kept-type"},
                            {"{\"layers\": {\"0\": [], \"1\": []}}", "kept-empty"}, {"{", "json"}, {"", "json"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *list = test_format("%s.bad.json", src);
        test_write_text(list, bad[i][0]);
        test_run r = RUN("proxy", src, beside(src, "wrong"), "--select", test_format("list:%s", list));
        test_assert_refused(&r, 1, bad[i][1]);
        assert_true(nothing_at(beside(src, "wrong")));
    }
}

/* ---- interrupted and failing runs ---- */

static void a_failed_write_is_resumed(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){.hidden = 64, .inter = 64, .experts = 16, .shards = 4}), *clean = beside(src, "clean"), *dst = beside(src, "out");
    test_run r = RUN("proxy", src, clean, "--experts", "8", "--select", "random");
    test_assert_done(&r);
    const char *args[] = {"proxy", src, dst, "--experts", "8", "--select", "random", NULL};
    r = test_understudy_with(args, &(test_run_options){.file_bytes_max = 100000});
    test_assert_refused(&r, 1, "no-space");
    assert_false(test_exists(dst));
    assert_true(test_exists(test_format("%s.understudy-partial", dst)));
    r = RUN("proxy", src, dst, "--experts", "8", "--select", "first");
    test_assert_refused(&r, 1, "partial");
    r = RUN("proxy", src, dst, "--experts", "6", "--select", "random");
    test_assert_refused(&r, 1, "partial");
    test_write_text(test_format("%s.understudy-partial/out/litter", dst), "x");
    r = test_understudy(args);
    test_assert_done(&r);
    assert_same_tree(clean, dst);
    assert_false(test_exists(test_format("%s.understudy-partial", dst)));
}

static void a_finished_shard_that_was_spoilt_is_written_again(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){.hidden = 64, .inter = 64, .experts = 16, .shards = 4}), *clean = beside(src, "clean"), *dst = beside(src, "out");
    const char *args[] = {"proxy", src, dst, "--experts", "8", "--select", "random", NULL};
    test_run r = RUN("proxy", src, clean, "--experts", "8", "--select", "random");
    test_assert_done(&r);
    /* stop it behind the first shard: a folder stands where the second one goes */
    const char *partial = test_format("%s.understudy-partial", dst), *second = test_format("%s/out/model-00002-of-00004.safetensors", partial);
    r = test_understudy_with(args, &(test_run_options){.file_bytes_max = 100000});
    size_t n = 0;
    const char *const *shards = test_list(clean, &n);
    const char *first = NULL;
    for (size_t i = 0; i < n && !first; i++) {
        if (us_str_ends(us_str_z(shards[i]), US_LIT(".safetensors"))) first = shards[i];
    }
    second = test_format("%s/out/%s", partial, first);
    /* a record that lies: right length, wrong bytes */
    size_t len = 0;
    const char *bytes = test_read(test_format("%s/%s", clean, first), &len);
    char *spoilt = malloc(len);
    assert_non_null(spoilt);
    memcpy(spoilt, bytes, len);
    spoilt[len - 1] = (char)(spoilt[len - 1] ^ 1);
    test_remove_tree(second);
    test_write(second, spoilt, len);
    free(spoilt);
    r = test_understudy(args);
    test_assert_done(&r);
    assert_same_tree(clean, dst);
}

static void wait_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* Start the command and kill it after `us` microseconds. Returns true when it had ended by itself. */
static bool run_and_kill(const char *const *args, unsigned us) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char *argv[16] = {(char *)(uintptr_t)getenv("US_COMMAND")};
        for (int i = 0; args[i] && i < 14; i++) argv[i + 1] = (char *)(uintptr_t)args[i];
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(126);
        execv(argv[0], argv);
        _exit(127);
    }
    struct timespec t = {us / 1000000, (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
    kill(pid, SIGKILL);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) wait_ms(1);
    return WIFEXITED(status);
}

static void kill_minus_nine_leaves_nothing_half_done(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){.hidden = 64, .inter = 128, .layers = 4, .experts = 16, .shards = 8}), *clean = beside(src, "clean"), *dst = beside(src, "out");
    test_run r = RUN("proxy", src, clean, "--experts", "8,4", "--select", "random");
    test_assert_done(&r);
    const char *args[] = {"proxy", src, dst, "--experts", "8,4", "--select", "random", NULL};
    int kills = 0, ended = 0;
    for (uint64_t i = 0; kills < 20 && i < 200; i++) {
        bool done = run_and_kill(args, (unsigned)us_rng_below(11, 0, i, i % 4 ? 60000 : 15000));
        kills += !done;
        if (!test_exists(dst)) continue;
        /* it is there: complete, or an error of ours */
        assert_same_tree(clean, dst);
        if (test_exists(test_format("%s.understudy-partial", dst))) { /* killed while cleaning up: the same command says done */
            r = test_understudy(args);
            test_assert_done(&r);
        }
        test_remove_tree(dst);
        ended++;
    }
    r = test_understudy(args);
    test_assert_done(&r);
    assert_same_tree(clean, dst);
    print_message("%d kills, %d runs that ended between them\n", kills, ended);
    assert_true(kills >= 20);
}

static void an_interrupt_leaves_a_state_that_resumes(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){.experts = 8, .shards = 2}), *dst = beside(src, "out");
    us_ctx *ctx = NULL;
    us_err err = {0};
    us_report *report = NULL;
    int64_t n = 4;
    us_proxy_request r = {.src = src, .dst = dst, .sizes = &n, .n_sizes = 1, .select = "first"};
    assert_us_ok(us_ctx_create(2, 0, &ctx, &err), &err);
    us_ctx_cancel(ctx);
    assert_int_equal(us_proxy_make(ctx, &r, &report, &err), US_E_CANCELLED);
    us_ctx_free(ctx);
    assert_false(test_exists(dst));
    assert_us_ok(test_proxy(&r, 2, &err), &err);
    assert_us_ok(test_verify(src, dst, false, &err), &err);
}

static us_status quiet_run(const us_proxy_request *r, us_err *err) {
    us_status s = test_proxy(r, 1, err);
    return s;
}

/* Every allocation fails once: a status comes back, nothing leaks, no destination appears. */
static void allocation_failures_are_survived(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){.experts = 4, .top_k = 1, .layers = 1, .shards = 2}), *dst = beside(src, "out");
    int64_t n = 2;
    for (int writing = 0; writing < 2; writing++) {
        us_proxy_request r = {.src = src, .dst = dst, .sizes = &n, .n_sizes = 1, .select = "random", .dry_run = !writing};
        uint64_t step = writing ? 5 : 1, i = 1;
        for (;; i += step) {
            us_err err = {0};
            uint64_t before = us_alloc_get_stats().live_blocks;
            us_alloc_fail_at(i);
            us_status s = quiet_run(&r, &err);
            bool failed = us_alloc_failed();
            us_alloc_fail_at(0);
            assert_int_equal(us_alloc_get_stats().live_blocks, before);
            if (!failed) {
                assert_us_ok(s, &err);
                break;
            }
            if (s == US_OK && writing) test_remove_tree(dst); /* the failed one was not needed */
            else assert_false(test_exists(dst));
        }
        print_message("%s: %d allocations\n", writing ? "writing" : "dry run", (int)i);
    }
    us_err err = {0};
    assert_us_ok(test_verify(src, dst, false, &err), &err);
    for (uint64_t i = 1;; i += 3) {
        uint64_t before = us_alloc_get_stats().live_blocks;
        us_alloc_fail_at(i);
        us_status s = test_verify(src, dst, i % 2, &err);
        bool failed = us_alloc_failed();
        us_alloc_fail_at(0);
        assert_int_equal(us_alloc_get_stats().live_blocks, before);
        if (!failed) {
            assert_int_equal(s, US_OK);
            break;
        }
    }
}

/* ---- verify ---- */

static void verify_tells_the_first_difference(void **state) {
    (void)state;
    const char *src = make_source(&(tiny_model){.experts = 8, .shards = 2}), *dst = beside(src, "out"), *moved = beside(src, "moved");
    test_run r = RUN("proxy", src, dst, "--experts", "4", "--select", "random");
    test_assert_done(&r);
    test_copy_tree(src, moved);
    r = RUN("verify", moved, dst, "--json");
    test_assert_done(&r);
    assert_non_null(strstr(r.out, "\"equal\": true"));
    const char *config = test_format("%s/config.json", dst), *good = test_read(config, NULL);
    const char *change[][3] = {{"\"rope_theta\": 10000.0", "\"rope_theta\": 10000", "config-behaviour"}, {"\"num_experts\": 4", "\"num_experts\": 8", "config-size"}};
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(good, change[i][0]);
        assert_non_null(at);
        test_write_text(config, test_format("%.*s%s%s", (int)(at - good), good, change[i][1], at + strlen(change[i][0])));
        r = RUN("verify", src, dst, "--json");
        assert_int_equal(r.status, 3);
        assert_non_null(strstr(r.err, change[i][2]));
        assert_non_null(strstr(r.out, "\"equal\": false"));
    }
    test_write_text(config, good);
    test_remove_tree(test_format("%s/tokenizer.json", dst));
    r = RUN("verify", src, dst);
    assert_int_equal(r.status, 3);
    assert_non_null(strstr(r.err, "[file]"));
    r = RUN("verify", src, test_format("%s-nowhere", src));
    assert_int_equal(r.status, 1);
    r = RUN("verify", src, src);
    test_assert_done(&r); /* all experts kept in their order */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ladder_is_nested_and_proven),
        cmocka_unit_test(threads_change_no_byte),
        cmocka_unit_test(keep_ratio_takes_the_nearest_legal_size),
        cmocka_unit_test(layers_are_cut_truly),
        cmocka_unit_test(no_layer_without_experts_remains),
        cmocka_unit_test(destinations_are_looked_at_first),
        cmocka_unit_test(force_deletes_only_what_the_tool_wrote),
        cmocka_unit_test(wrong_usage_is_exit_2),
        cmocka_unit_test(list_files_come_in_several_shapes),
        cmocka_unit_test(a_failed_write_is_resumed),
        cmocka_unit_test(a_finished_shard_that_was_spoilt_is_written_again),
        cmocka_unit_test(kill_minus_nine_leaves_nothing_half_done),
        cmocka_unit_test(an_interrupt_leaves_a_state_that_resumes),
        cmocka_unit_test(allocation_failures_are_survived),
        cmocka_unit_test(verify_tells_the_first_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* `understudy generate` on every model of fixtures/models: greedy continuation of the prompt, token for token, f32. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "base/str.h"
#include "io/json.h"
#include "support/model_ref.h"
#include "support/support.h"

/* ids of the answer against the reference's; true when equal. */
static bool same_ids(const char *out, size_t n_out, const double *want, size_t n) {
    us_json_doc d;
    us_err err = {0};
    size_t i = 0;
    bool same = true;
    assert_us_ok(us_json_doc_parse(&d, (us_str){out, n_out}, 0, &err), &err);
    us_json_ref ids = us_json_get(&d, 0, "ids");
    for (us_json_ref e = us_json_first(&d, ids); e != US_JSON_NO; e = us_json_next(&d, ids, e), i++) {
        int64_t id = -1;
        same &= us_json_i64(&d, e, &id) && i < n && (double)id == want[i];
    }
    us_json_doc_free(&d);
    return same && i == n;
}

static void greedy_as_transformers(void **state) {
    (void)state;
    int models = 0, wrong = 0;
    const char *prompt = test_format("%s/prompt.json", test_temp_dir());
    for (const char *const *f = test_folders("models", "config.json model.safetensors ref.safetensors"); *f; f++) {
        ref_file ref;
        size_t n;
        us_buf b = {0};
        ref_open(&ref, *f);
        double *want = ref_values(&ref, "greedy", &n);
        ref_close(&ref);
        if (!want) continue;
        us_buf_z(&b, "[[");
        for (int i = 0; i < 12; i++) us_buf_printf(&b, "%s%.0f", i ? "," : "", want[i]);
        us_buf_z(&b, "]]");
        test_write_text(prompt, us_buf_text(&b));
        us_buf_free(&b);
        test_run r = test_understudy((const char *const[]){"generate", *f, "--ids", prompt, "--greedy", "--ignore-eos", "--dtype", "f32", "--json", "--max-new",
                                                           test_format("%zu", n - 12), NULL});
        test_assert_done(&r);
        if (!same_ids(r.out, r.n_out, want, n)) {
            print_error("%s: %s\n", test_name(*f), r.out);
            wrong++;
        }
        free(want);
        models++;
    }
    print_message("%d models\n", models);
    assert_true(models >= 30);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(greedy_as_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

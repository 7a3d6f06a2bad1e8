/* The list of families and look-ups over it. A new family adds its two lines here (docs/dev/adding-a-family.md). */
#include "model/family.h"

#include <string.h>

extern const us_family us_family_afmoe, us_family_axk1, us_family_axk2, us_family_bailing_hybrid, us_family_cohere2_moe, us_family_deepseek_v2,
    us_family_deepseek_v3, us_family_deepseek_v32, us_family_deepseek_v4, us_family_deepseek_v41, us_family_dots1,
    us_family_dots3_note, us_family_ernie4_5_moe, us_family_exaone_moe, us_family_flex_olmo, us_family_gemma4, us_family_glm4_moe,
    us_family_glm4_moe_lite, us_family_glm5_next, us_family_glm_moe_dsa, us_family_gpt_oss, us_family_granitemoe,
    us_family_hunyuan_v1_moe, us_family_hy_v3, us_family_jamba, us_family_jetmoe, us_family_kimi_k25,
    us_family_kimi_linear, us_family_laguna, us_family_lfm2_moe, us_family_llama, us_family_llama4,
    us_family_longcat_flash, us_family_mellum, us_family_mimo_v2_flash, us_family_minimax, us_family_minimax_m2,
    us_family_minimax_m3, us_family_mixtral, us_family_nemotron_h, us_family_olmoe, us_family_pangu_pro_moe,
    us_family_pangu_ultra_moe, us_family_phimoe, us_family_qwen2, us_family_qwen2_moe, us_family_qwen3,
    us_family_qwen3_5, us_family_qwen3_5_moe, us_family_qwen3_moe, us_family_qwen3_next, us_family_qwen3_omni_moe,
    us_family_qwen3_vl_moe, us_family_qwen4_exp, us_family_sarvam_moe, us_family_solar_open, us_family_step3p7;

const us_family *const us_families[] = {
    &us_family_afmoe, &us_family_axk1, &us_family_axk2, &us_family_bailing_hybrid, &us_family_cohere2_moe, &us_family_deepseek_v2,
    &us_family_deepseek_v3, &us_family_deepseek_v32, &us_family_deepseek_v4, &us_family_deepseek_v41,
    &us_family_dots1, &us_family_dots3_note, &us_family_ernie4_5_moe, &us_family_exaone_moe, &us_family_flex_olmo, &us_family_gemma4,
    &us_family_glm4_moe, &us_family_glm4_moe_lite, &us_family_glm5_next, &us_family_glm_moe_dsa,
    &us_family_gpt_oss, &us_family_granitemoe, &us_family_hunyuan_v1_moe, &us_family_hy_v3, &us_family_jamba,
    &us_family_jetmoe, &us_family_kimi_k25, &us_family_kimi_linear, &us_family_laguna, &us_family_lfm2_moe,
    &us_family_llama, &us_family_llama4, &us_family_longcat_flash, &us_family_mellum, &us_family_mimo_v2_flash,
    &us_family_minimax, &us_family_minimax_m2, &us_family_minimax_m3, &us_family_mixtral, &us_family_nemotron_h,
    &us_family_olmoe, &us_family_pangu_pro_moe, &us_family_pangu_ultra_moe, &us_family_phimoe, &us_family_qwen2,
    &us_family_qwen2_moe, &us_family_qwen3, &us_family_qwen3_5, &us_family_qwen3_5_moe, &us_family_qwen3_moe,
    &us_family_qwen3_next, &us_family_qwen3_omni_moe, &us_family_qwen3_vl_moe, &us_family_qwen4_exp,
    &us_family_sarvam_moe, &us_family_solar_open, &us_family_step3p7, NULL,
};

bool us_word_in(us_str word, const char *list) {
    while (list && *list) {
        size_t n = strcspn(list, "|");
        if (us_str_eq(word, (us_str){list, n})) return true;
        list += n + (list[n] == '|');
    }
    return false;
}

const us_family *us_family_find(us_str model_type) {
    for (size_t i = 0; us_families[i]; i++)
        if (us_word_in(model_type, us_families[i]->types)) return us_families[i];
    return NULL;
}

/* Levenshtein distance, capped: names are short and this runs once, before a refusal. */
static size_t distance(us_str a, us_str b) {
    enum { MAX = 64 };
    size_t row[MAX + 1];
    if (a.n > MAX || b.n > MAX) return SIZE_MAX;
    for (size_t j = 0; j <= b.n; j++) row[j] = j;
    for (size_t i = 1; i <= a.n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.n; j++) {
            size_t change = diagonal + (a.p[i - 1] != b.p[j - 1]);
            diagonal = row[j];
            size_t best = row[j] + 1 < row[j - 1] + 1 ? row[j] + 1 : row[j - 1] + 1;
            row[j] = change < best ? change : best;
        }
    }
    return row[b.n];
}

const char *us_family_nearest(us_str model_type) {
    const char *best = us_families[0]->name;
    size_t least = SIZE_MAX;
    for (size_t i = 0; us_families[i]; i++) {
        size_t d = distance(model_type, us_str_z(us_families[i]->name));
        if (d < least) {
            least = d;
            best = us_families[i]->name;
        }
    }
    return best;
}

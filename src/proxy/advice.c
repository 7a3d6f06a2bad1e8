/**
 * What changes outside of the checkpoint when the expert count changes: said at the end of every proxy (requirements 12, 22, 23, 24).
 *
 * Facts: cases P20, P21, T06, T10, T11; spec/moe-proxy.md 2.3 and requirements-proxy.md D. Only what applies to this model is said.
 */
#include "proxy/report.h"

#include <stdio.h>

#include <string.h>

typedef struct say {
    us_buf *text, *json;
    bool first;
} say;

static void line(say *o, const char *text) {
    us_buf_printf(o->text, "  - %s\n", text);
    us_buf_z(o->json, o->first ? "" : ", ");
    us_buf_json(o->json, us_str_z(text));
    o->first = false;
}

static void begin(say *o, const char *title, const char *key) {
    us_buf_printf(o->text, "%s\n", title);
    us_buf_printf(o->json, ", \"%s\": [", key);
    o->first = true;
}

static void end(say *o) {
    us_buf_c(o->json, ']');
}

static bool is_stacked(const us_structure *s) {
    for (size_t i = 0; i < s->ck->n_tensors; i++) {
        if (s->roles[i].kind == US_ROLE_EXPERT) return false;
    }
    return true;
}

static bool has_mtp(const us_structure *s) {
    for (size_t i = 0; i < s->ck->n_tensors; i++) {
        if (s->roles[i].part == US_PART_MTP) return true;
    }
    for (size_t b = 0; b < s->n_blocks; b++) {
        if (s->blocks[b].mtp) return true;
    }
    return false;
}

static us_str model_type(const us_structure *s) {
    const us_json_doc *d = &s->ck->config;
    us_json_ref t = us_json_get(d, s->text_config, "model_type");
    if (t == US_JSON_NO) t = us_json_get(d, 0, "model_type");
    return us_json_string(d, t);
}

static void trainer(say *o, const us_structure *s, uint32_t n) {
    char text[320];
    static const char *const names[] = {"megatron", "slime"};
    for (int i = 0; i < 2; i++) {
        us_buf_z(o->json, i ? ", " : "");
        us_buf_printf(o->json, "\"%s\": [\"--num-experts %u\"", names[i], n);
        if (s->n_group > 1)
            us_buf_printf(o->json, ", \"--moe-router-num-groups %u\", \"--moe-router-group-topk %u\"", s->n_group, s->topk_group);
        us_buf_c(o->json, ']');
    }
    us_buf_printf(o->json, ", \"verl\": [\"actor_rollout_ref.actor.megatron.override_transformer_config.num_moe_experts=%u\"]", n);
    us_buf_z(o->json, ", \"vllm_sglang\": []");
    int len = snprintf(text, sizeof text, "Megatron, slime: --num-experts %u", n);
    if (s->n_group > 1)
        snprintf(text + len, sizeof text - (size_t)len, " --moe-router-num-groups %u --moe-router-group-topk %u (group arguments unchanged)", s->n_group, s->topk_group);
    us_buf_printf(o->text, "  - %s\n", text);
    us_buf_printf(o->text, "  - verl (Megatron backend): override_transformer_config.num_moe_experts=%u where the launcher sets it; expert_model_parallel_size must divide %u\n", n, n);
    us_buf_z(o->text, "  - vLLM, SGLang: nothing, they read config.json\n");
}

static void loaders(say *o, const us_structure *s) {
    us_str type = model_type(s);
    if (s->family->loaders) line(o, s->family->loaders);
    static const char *const per_expert_families[] = {"qwen2_moe", "qwen3_moe", "qwen3_next", "deepseek_v2", "deepseek_v3", "glm4_moe", "mixtral", "olmoe", "minimax_m2", NULL};
    if (is_stacked(s)) {
        for (int i = 0; per_expert_families[i]; i++) {
            if (!us_str_starts(type, us_str_z(per_expert_families[i]))) continue;
            line(o, "experts are stacked (experts.gate_up_proj), but this family is published with one tensor an expert: vLLM before PR 36997, SGLang (issue 38618) and "
                    "Megatron-Bridge before PR 4706 skip the stacked names without an error and run with untouched experts; check that no weight was left out");
            return;
        }
        line(o, "experts are stacked, as this family is published; loaders that know only one tensor an expert skip them without an error: read the list of unused weights");
        return;
    }
    if (us_str_starts(type, US_LIT("qwen3_5_moe")) || us_str_starts(type, US_LIT("qwen3_vl_moe")) || us_str_starts(type, US_LIT("gpt_oss")) || us_str_starts(type, US_LIT("llama4")))
        line(o, "experts lie one tensor an expert, but this family is usually published stacked: loaders that know only the stacked names skip them without an error");
    else line(o, "experts lie one tensor an expert, as most loaders expect; transformers 5 stacks them while loading");
    if (has_mtp(s)) line(o, "transformers ignores MTP tensors; vLLM and SGLang build the MTP head from the same expert count, so it was cut in lockstep");
}

static void paths(say *o, const us_structure *s, uint32_t n) {
    char text[320];
    uint32_t old = s->n_experts;
    if (old == 256 && n != 256)
        line(o, "shared-expert fusion of SGLang and some NPU paths are taken at exactly 256 routed experts: a fault there vanishes in the proxy");
    if ((old == 256 || old == 384) && n != 256 && n != 384) line(o, "SGLang's fused router GEMM takes 256 and 384 experts only; the proxy uses the plain one");
    bool power = n && !(n & (n - 1)) && n <= 128;
    bool listed = power || n == 192 || n == 256 || n == 320 || n == 384 || n == 448 || n == 512 || n == 576;
    if (!listed) {
        snprintf(text, sizeof text, "one vLLM top-k kernel (softplus-sqrt scoring) takes powers of two up to 128, then 192, 256, 320, 384, 448, 512, 576; %u is none of them", n);
        line(o, text);
    }
    if (s->n_group > 1 && n / s->n_group <= 32 && old / s->n_group > 32) line(o, "aiter's grouped top-k takes at most 32 experts a group: the proxy may take it where the original does not");
    snprintf(text, sizeof text, "tuned fused-MoE tables are keyed by the expert count: for E=%u engines fall back to default tiles unless tuned again", n);
    line(o, text);
    snprintf(text, sizeof text, "keep tokens and experts per rank: run with EP scaled as the experts are (EP x %u/%u), and with EP >= 2 if the original had it", n, old);
    line(o, text);
}

void us_report_advice(us_report *r, const us_structure *s, const us_plan *const *plans, size_t n_plans) {
    say o = {&r->text, &r->json, true};
    us_buf_z(&r->json, ", \"advice\": [");
    for (size_t i = 0; i < n_plans; i++) {
        uint32_t n = plans[i]->keep->n;
        us_buf_z(&r->json, i ? ", " : "");
        us_buf_printf(&r->json, "{\"experts\": %u, ", n);
        us_buf_printf(&r->text, "\nWith %u experts, change elsewhere (launch scripts of the full model still say %u; that fails late or silently):\n", n, s->n_experts);
        trainer(&o, s, n);
        begin(&o, "Loaders:", "loaders");
        loaders(&o, s);
        end(&o);
        begin(&o, "Engine paths that depend on the number of experts:", "engine_paths");
        paths(&o, s, n);
        end(&o);
        begin(&o, "What this proxy does not promise:", "limits");
        line(&o, "ability: half of 64 experts kept 92.7 % of it in one model and 19.5 % in another; measure the reward at step 0 before trusting a run (that gate was not run here)");
        line(&o, "loads: the largest normalised load of an expert is bounded by E/k, smaller than in the original; router weights are the real ones, sliced");
        if (plans[i]->cut.cut) line(&o, "LAYERS WERE CUT: faults that grow with depth, and kernels chosen by layer, may not show");
        else line(&o, "heads, widths and latent sizes are untouched, because kernels are compiled for them");
        end(&o);
        us_buf_c(&r->json, '}');
    }
    us_buf_c(&r->json, ']');
}

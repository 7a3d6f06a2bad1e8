/**
 * Parallel layouts of RL training and rollout, and the memory a device needs under them.
 *
 * Formulas: spec/moe-proxy.md 4.1, requirements-proxy.md 28-32. Three buckets of parameters: sharded by tensor parallelism, replicated inside it, routed experts
 * (by expert tensor parallelism x expert parallelism). All sizes in bytes; GB = 1e9. Pure arithmetic, no state. Tests: tests/unit/test_layout.c.
 */
#ifndef US_PROXY_LAYOUT_H
#define US_PROXY_LAYOUT_H

#include "model/count.h"
#include "model/structure.h"

typedef struct us_layout {
    uint32_t world, tp, pp, cp, ep, etp;
    uint32_t dp, edp; /* filled by us_layout_check: dense and expert data parallel width */
} us_layout;

/** world divisible by TP*PP*CP and by ETP*EP*PP (EP may exceed DP). US_E_REFUSED, class "layout". dp stays filled when only the second rule fails. */
us_status us_layout_check(us_layout *l, us_err *err) US_WARN_UNUSED;
/**
 * Does the model divide over the widths? Heads over TP; KV heads over TP or TP over them (then they are copied); experts over EP; no pipeline stage
 * without a layer. US_E_REFUSED, class "heads-divide", "kv-heads-divide", "ep-divide" or "stages".
 */
us_status us_layout_check_model(const us_layout *l, const us_counts *n, us_err *err) US_WARN_UNUSED;

typedef enum us_optimizer { US_OPT_ADAM, US_OPT_ADAM_8BIT, US_OPT_MUON, US_OPT_SGD } us_optimizer;
/** By name: adam (adamw), adam8bit, muon, sgd. false when unknown. */
bool us_optimizer_parse(const char *name, us_optimizer *out);
const char *us_optimizer_name(us_optimizer o);
/** Bytes a parameter of master copy and moments: 12, 6, 8, 4. Weight (2) and gradient (4) come on top. */
uint32_t us_optimizer_state_bytes(us_optimizer o);

typedef struct us_training {
    double memory;            /* of a device, bytes */
    double usable;            /* fraction, 0.85 */
    uint32_t per_node;
    us_optimizer optimizer;
    uint64_t longest;         /* tokens of the longest packed sample: log-probs */
    uint64_t sequence;        /* tokens a micro-batch: activations */
    uint32_t logprob_copies;  /* f32 copies alive, 2 */
    bool recompute;           /* full recomputation: a layer keeps its input only */
    us_layout fixed;          /* widths that the search must use; 0 = free */
} us_training;

/** What one device holds, by moment. */
typedef struct us_moments {
    double weights, gradients, optimizer, activations, logits, logprobs; /* parts */
    double load, logprob_pass, first_step, steady;                        /* moments */
    double peak;
    double host_per_node;     /* optimizer on the host: master copy and moments */
} us_moments;

/** Exact parameters with E' experts in every MoE layer: router rows leave with their experts. */
us_counts us_counts_with_experts(const us_counts *n, uint32_t experts);
/** N_min = ceil(bytes * (other + r * routed) / (M * eta)), r = E'/E: the floor below which no layout fits (spec 4.1). */
uint64_t us_static_floor(const us_counts *n, uint32_t experts, uint32_t bytes_per_parameter, double memory, double usable);
void us_training_memory(const us_counts *n, const us_training *t, const us_layout *l, bool offload, us_moments *out);
/** The least world (multiples of a node, or 1, 2, 4 devices) and a layout in which every moment fits. false when none up to max_world. Deterministic. */
bool us_training_search(const us_counts *n, const us_training *t, bool offload, uint32_t max_world, us_layout *out, us_moments *m);

typedef struct us_rollout {
    uint32_t devices;         /* of one engine */
    uint32_t tp, dp, ep;      /* attention over TP inside a node, DP copies of it; experts over all devices */
    uint32_t redundant;       /* least extra experts a layer so that EP divides them; their bytes are in `weights` */
    double weights;           /* bytes a device */
    double kv_per_token;      /* bytes, bf16, over the whole engine; windowed layers apart */
    double window_kv;         /* bytes a sequence of the windowed layers and recurrent states */
    uint64_t tokens;          /* that fit beside the weights */
    uint64_t sequences;       /* of `sequence` tokens */
} us_rollout;
/**
 * The smallest engine (1, 2, 4 ... devices) that holds the weights and at least one sequence in 90 % of its memory. A device holds its TP share of the backbone,
 * the replicated parameters, and (E + R) / EP experts a layer; `tokens` and `sequences` assume that no KV head is copied.
 */
bool us_rollout_size(const us_counts *n, const us_training *t, double bytes_per_weight, us_rollout *out);

/** Least redundant experts so that EP divides E + R. */
uint32_t us_redundant_experts(uint32_t experts, uint32_t ep);
/** Margin of the k-th over the (k+1)-th of `experts` Gaussian logits, relative to the original's (spec 5.2): > 1 means fewer routing flips. */
double us_margin_ratio(uint32_t original, uint32_t experts, uint32_t top_k);

/* ---- which sizes an engine runs ---- */

typedef enum us_engine { US_ENGINE_ANY, US_ENGINE_MEGATRON, US_ENGINE_VLLM, US_ENGINE_SGLANG, US_ENGINE_TRANSFORMERS } us_engine;
bool us_engine_parse(const char *name, us_engine *out);
/**
 * May the model run with n experts on this engine under EP (0 = not given) and TP (0 = not given)? The family's rules first
 * (us_expert_count_check), then class "ep-divide", "tp-above-experts", "kernel-list", "kernel-limit". fp8_block: 128-wide blocks of a quantised checkpoint, class "fp8-block".
 */
us_status us_engine_check(const us_counts *n, us_router_math router, us_engine e, uint32_t ep, uint32_t tp, bool fp8_block, int64_t experts, us_err *err) US_WARN_UNUSED;

#endif

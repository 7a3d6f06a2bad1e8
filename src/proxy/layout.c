/* Layout rules, memory by moment, the search for the least number of devices. See layout.h. */
#define _DEFAULT_SOURCE
#include "proxy/layout.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* ---- rules ---- */

us_status us_layout_check(us_layout *l, us_err *err) {
    uint64_t dense = (uint64_t)l->tp * l->pp * l->cp, expert = (uint64_t)l->etp * l->ep * l->pp;
    l->dp = l->edp = 0;
    if (!dense || !expert || !l->world) return us_fail(err, US_E_INVAL, "layout", "every width of a layout is at least 1");
    if (l->world % dense == 0) l->dp = (uint32_t)(l->world / dense);
    else {
        us_fail(err, US_E_REFUSED, "layout", "%u devices are not a multiple of TP x PP x CP = %llu", l->world, (unsigned long long)dense);
        return US_E_REFUSED;
    }
    if (l->world % expert) return us_fail(err, US_E_REFUSED, "layout", "%u devices are not a multiple of ETP x EP x PP = %llu", l->world, (unsigned long long)expert);
    l->edp = (uint32_t)(l->world / expert);
    return US_OK;
}

us_status us_layout_check_model(const us_layout *l, const us_counts *n, us_err *err) {
    if (n->heads % l->tp) return us_fail(err, US_E_REFUSED, "heads-divide", "%u attention heads do not divide over TP %u", n->heads, l->tp);
    if (n->kv_heads && n->kv_heads % l->tp && l->tp % n->kv_heads)
        return us_fail(err, US_E_REFUSED, "kv-heads-divide", "%u KV heads neither divide over TP %u nor divide it", n->kv_heads, l->tp);
    if (n->n_experts && n->n_experts % l->ep) return us_fail(err, US_E_REFUSED, "ep-divide", "%u experts do not divide over EP %u", n->n_experts, l->ep);
    /* Stages may differ by a layer (61 layers in 12 stages: one of 6, eleven of 5), as the recipes that set them by hand do. */
    if (l->pp > n->n_layers) return us_fail(err, US_E_REFUSED, "stages", "%u layers leave stages of PP %u empty", n->n_layers, l->pp);
    return US_OK;
}

static const struct {
    const char *name;
    uint32_t state;
} optimizers[] = {{"adam", 12}, {"adam8bit", 6}, {"muon", 8}, {"sgd", 4}};

bool us_optimizer_parse(const char *name, us_optimizer *out) {
    if (strcasecmp(name, "adamw") == 0) name = "adam";
    for (int i = 0; i < 4; i++)
        if (strcasecmp(name, optimizers[i].name) == 0) return *out = (us_optimizer)i, true;
    return false;
}

const char *us_optimizer_name(us_optimizer o) {
    return optimizers[o].name;
}

uint32_t us_optimizer_state_bytes(us_optimizer o) {
    return optimizers[o].state;
}

/* ---- memory ---- */

us_counts us_counts_with_experts(const us_counts *n, uint32_t experts) {
    us_counts r = *n;
    if (!n->n_experts || experts == n->n_experts) return r;
    uint64_t per = n->per_expert * n->n_moe_layers, rows = (uint64_t)n->n_moe_layers * n->hidden;
    r.n_experts = experts;
    r.routed = per * experts;
    uint64_t gone = rows * (n->n_experts - experts);
    r.replicated -= gone < r.replicated ? gone : r.replicated;
    r.other = r.tp_sharded + r.replicated;
    r.total = r.other + r.routed;
    r.active = n->active - (n->other - r.other);
    r.mtp_routed = n->mtp_routed / n->n_experts * experts;
    r.mtp = n->mtp - n->mtp_routed + r.mtp_routed;
    return r;
}

uint64_t us_static_floor(const us_counts *n, uint32_t experts, uint32_t bytes, double memory, double usable) {
    double r = n->n_experts ? (double)experts / n->n_experts : 1;
    return (uint64_t)ceil(bytes * ((double)n->other + r * (double)n->routed) / (memory * usable));
}

/* Parameters on the fullest device: dense and routed. Uneven pipelines round up; the first stage also holds the embedding, the last the head. */
static void rank_parameters(const us_counts *n, const us_layout *l, double *dense, double *routed) {
    double layers = ceil((double)n->n_layers / l->pp), stage = layers / n->n_layers, moe = stage;
    /* A few dense layers stand in front: a later stage is MoE throughout. Otherwise MoE layers are spread evenly. */
    if (n->n_moe_layers && n->n_layers - n->n_moe_layers <= n->n_layers / 8) moe = fmin(layers, n->n_moe_layers) / n->n_moe_layers;
    else if (n->n_moe_layers) moe = ceil(n->n_moe_layers * stage) / n->n_moe_layers;
    double body = (double)(n->tp_sharded - n->embed - n->head);
    double ends = (double)(l->pp == 1 ? n->embed + n->head : n->embed > n->head ? n->embed : n->head);
    *dense = (body / l->tp + (double)n->replicated) * stage + ends / l->tp;
    *routed = (double)n->routed * moe / ((double)l->etp * l->ep);
}

void us_training_memory(const us_counts *n, const us_training *t, const us_layout *l, bool offload, us_moments *m) {
    double dense, routed, D = n->hidden, s = (double)t->sequence / l->cp;
    uint32_t state = us_optimizer_state_bytes(t->optimizer);
    memset(m, 0, sizeof *m);
    rank_parameters(n, l, &dense, &routed);
    m->weights = 2 * (dense + routed);
    m->gradients = 4 * (dense + routed);
    double states = state * (dense / l->dp + routed / l->edp);
    m->optimizer = offload ? 0 : states;
    m->host_per_node = offload ? states * (l->world < t->per_node ? l->world : t->per_node) : 0;
    double ffn = n->n_experts ? (double)n->top_k * n->expert_ffn + n->shared_ffn : n->dense_ffn;
    double layer = s * D * (18 + 4 * ffn / D) / l->tp, kept = t->recompute ? s * D * 2 / l->tp : layer;
    double layers = ceil((double)n->n_layers / l->pp);
    double first = layers * kept * l->pp + (t->recompute ? layer : 0), last = layers * kept + (t->recompute ? layer : 0);
    m->logits = s * n->vocab * 6 / l->tp;
    m->activations = l->pp > 1 && first > last + m->logits ? first : last + m->logits;
    m->logprobs = (double)t->longest / l->cp * n->vocab / l->tp * 4 * t->logprob_copies;
    m->load = m->weights + 2 * routed;
    m->logprob_pass = m->weights + m->optimizer + (offload ? 0 : m->gradients) + m->logprobs;
    m->first_step = m->weights + m->gradients + m->optimizer + 2 * (dense + routed); /* the new bf16 weights beside the old ones */
    m->steady = m->weights + m->gradients + m->optimizer + m->activations;
    m->peak = fmax(fmax(m->load, m->logprob_pass), fmax(m->first_step, m->steady));
}

/* ---- search ---- */

typedef struct search {
    const us_counts *n;
    const us_training *t;
    bool offload;
    us_layout best;
    us_moments m;
    double cost;
} search;

/* Less pipeline and tensor parallelism first (bubbles, traffic), then less memory. */
static double cost_of(const us_layout *l, const us_moments *m, const search *s) {
    return (l->pp - 1) * 4.0 + (l->tp - 1) * 1.0 + (l->cp - 1) * 2.0 + (l->ep > s->t->per_node ? 3.0 : 0.0) + m->peak / s->t->memory;
}

static void try_layout(search *s, us_layout l) {
    us_moments m;
    if (us_layout_check(&l, NULL) != US_OK || us_layout_check_model(&l, s->n, NULL) != US_OK) return;
    us_training_memory(s->n, s->t, &l, s->offload, &m);
    if (m.peak > s->t->memory * s->t->usable) return;
    double cost = cost_of(&l, &m, s);
    if (s->best.world && cost >= s->cost) return;
    s->best = l;
    s->m = m;
    s->cost = cost;
}

/* Is width v allowed where `fixed` (0 = free) was asked for? */
static bool free_or(uint32_t fixed, uint32_t v) {
    return !fixed || fixed == v;
}

/* TP and CP: powers of two, TP inside a node; a width that was asked for is tried whatever it is. */
static uint32_t next_width(uint32_t fixed, uint32_t v) {
    return fixed ? UINT32_MAX : v * 2;
}

static void try_world(search *s, uint32_t world) {
    const us_layout *f = &s->t->fixed;
    uint32_t E = s->n->n_experts ? s->n->n_experts : 1, node = s->t->per_node, etp = f->etp ? f->etp : 1;
    for (uint32_t tp = f->tp ? f->tp : 1; tp <= (f->tp ? f->tp : node) && tp <= world; tp = next_width(f->tp, tp)) {
        if (s->n->heads % tp) continue;
        for (uint32_t pp = 1; pp <= s->n->n_layers && (uint64_t)tp * pp <= world; pp++) {
            if (!free_or(f->pp, pp) || world % (tp * pp)) continue;
            uint32_t rest = world / pp;
            for (uint32_t cp = f->cp ? f->cp : 1; cp <= (f->cp ? f->cp : 8) && (uint64_t)tp * cp <= rest; cp = next_width(f->cp, cp))
                for (uint32_t ep = 1; ep <= E && (uint64_t)ep * etp <= rest; ep++)
                    if (free_or(f->ep, ep) && E % ep == 0 && rest % (ep * etp) == 0) try_layout(s, (us_layout){world, tp, pp, cp, ep, etp, 0, 0});
        }
    }
}

bool us_training_search(const us_counts *n, const us_training *t, bool offload, uint32_t max_world, us_layout *out, us_moments *m) {
    search s = {.n = n, .t = t, .offload = offload};
    uint32_t state = us_optimizer_state_bytes(t->optimizer);
    double floor_bytes = (6.0 + (offload ? 0 : state)) * (double)n->total;
    /* No layout can beat perfect sharding: begin there. Dense parts are replicated over DP, so this is a bound, not an estimate. */
    double least = floor_bytes / (t->memory * t->usable);
    for (uint32_t world = 1; world <= max_world && !s.best.world; world = world < t->per_node ? world * 2 : world + t->per_node) {
        if (world < least * 0.99) continue;
        try_world(&s, world);
    }
    if (!s.best.world) return false;
    *out = s.best;
    *m = s.m;
    return true;
}

bool us_rollout_size(const us_counts *n, const us_training *t, double bytes_per_weight, us_rollout *out) {
    double usable = t->memory * 0.9;
    memset(out, 0, sizeof *out);
    out->kv_per_token = 2.0 * (double)n->kv_elements;
    out->window_kv = 2.0 * (double)n->kv_window_elements * (n->window && n->window < t->sequence ? n->window : (double)t->sequence) + 4.0 * (double)n->state_elements;
    double one = out->kv_per_token * (double)t->sequence + out->window_kv;
    for (uint32_t g = 1; g <= 4096; g *= 2) {
        us_layout l = {g, 1, 1, 1, 1, 1, 0, 0};
        for (uint32_t tp = 2; tp <= g && tp <= t->per_node; tp *= 2) {
            us_layout wider = {g, tp, 1, 1, 1, 1, 0, 0};
            if (us_layout_check_model(&wider, n, NULL) == US_OK) l = wider;
        }
        out->redundant = n->n_experts ? us_redundant_experts(n->n_experts, g) : 0;
        double experts = (double)n->routed + (double)out->redundant * n->n_moe_layers * (double)n->per_expert;
        out->weights = bytes_per_weight * ((double)n->tp_sharded / l.tp + (double)n->replicated + experts / g);
        double room = g * (usable - out->weights);
        if (room < one || room <= 0) continue;
        out->devices = g;
        out->tp = l.tp;
        out->dp = g / l.tp;
        out->ep = n->n_experts ? g : 1;
        out->sequences = one > 0 ? (uint64_t)(room / one) : 0;
        out->tokens = out->kv_per_token > 0 ? (uint64_t)(room / out->kv_per_token) : 0;
        return true;
    }
    return false;
}

uint32_t us_redundant_experts(uint32_t experts, uint32_t ep) {
    return ep ? (ep - experts % ep) % ep : 0;
}

/* Inverse of the normal distribution function by bisection: called a handful of times, needs no constants. */
static double normal_quantile(double p) {
    double lo = -12, hi = 12;
    for (int i = 0; i < 200; i++) {
        double mid = (lo + hi) / 2;
        if (0.5 * erfc(-mid / sqrt(2.0)) < p) lo = mid;
        else hi = mid;
    }
    return (lo + hi) / 2;
}

static double margin(uint32_t E, uint32_t k) {
    double z = normal_quantile(1 - (double)k / E), density = exp(-z * z / 2) / sqrt(2 * acos(-1.0));
    return 1 / (E * density);
}

double us_margin_ratio(uint32_t original, uint32_t experts, uint32_t top_k) {
    if (!top_k || experts <= top_k || original <= top_k) return (double)NAN;
    return margin(experts, top_k) / margin(original, top_k);
}

/* ---- engines ---- */

bool us_engine_parse(const char *name, us_engine *out) {
    static const char *const names[] = {"any", "megatron", "vllm", "sglang", "transformers"};
    for (int i = 0; i < 5; i++)
        if (strcasecmp(name, names[i]) == 0) return *out = (us_engine)i, true;
    return false;
}

/* vLLM's softplus-sqrt top-k kernel: 1..128 powers of two, then these (spec 2.3). */
static bool softplus_kernel_has(int64_t n) {
    static const int list[] = {192, 256, 320, 384, 448, 512, 576};
    if (n <= 128 && (n & (n - 1)) == 0) return true;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (n == list[i]) return true;
    return false;
}

us_status us_engine_check(const us_counts *n, us_router_math router, us_engine e, uint32_t ep, uint32_t tp, bool fp8_block, int64_t experts, us_err *err) {
    US_TRY(us_expert_count_check(n->n_experts, n->top_k, n->n_group, n->topk_group, n->group_rule, experts, err));
    bool megatron = e == US_ENGINE_MEGATRON, serving = e == US_ENGINE_VLLM || e == US_ENGINE_SGLANG;
    if (ep && experts % ep && (megatron || e == US_ENGINE_ANY || (e == US_ENGINE_SGLANG && experts > ep)))
        return us_fail(err, US_E_REFUSED, "ep-divide", "%lld experts do not divide over EP %u", (long long)experts, ep);
    if (ep && serving && experts < ep) {
        us_fail(err, US_E_REFUSED, "ep-above-experts", "EP %u is wider than %lld experts: %u redundant ones are needed", ep, (long long)experts, us_redundant_experts((uint32_t)experts, ep));
        return US_E_REFUSED;
    }
    if (serving && tp > 1 && experts < tp) return us_fail(err, US_E_REFUSED, "tp-above-experts", "TP %u is larger than %lld experts", tp, (long long)experts);
    if (e == US_ENGINE_VLLM && router == US_ROUTER_V4 && !softplus_kernel_has(experts))
        return us_fail(err, US_E_REFUSED, "kernel-list", "the top-k kernel of sqrt-softplus routers takes powers of two up to 128, then 192, 256, 320, 384, 448, 512, 576");
    if (e == US_ENGINE_VLLM && n->n_group > 1 && experts > 256)
        return us_fail(err, US_E_REFUSED, "kernel-limit", "the grouped top-k kernel takes at most 256 experts in groups");
    if (fp8_block && tp > 1 && (n->expert_ffn % tp || n->expert_ffn / tp % 128 || (n->shared_ffn && (n->shared_ffn % tp || n->shared_ffn / tp % 128))))
        return us_fail(err, US_E_REFUSED, "fp8-block", "expert width %u over TP %u is not a multiple of the 128-wide FP8 block; use EP instead", n->expert_ffn, tp);
    return US_OK;
}

/* The grid row of largest expected improvement under averaged Gaussian processes (see averaged_gp.py), agent by agent.

   A model is a pair j of a kernel and a noise variance, and a factor r of the known mean g. Kernel c < L is table c;
   kernel L + c is `own table_c + common`. With the Cholesky factor L_j, `white x = L_j^-1 x` and p = |white 1|^2:

       residual = white z - r white g - c white 1,    c = (white 1)' (white z - r white g) / p
       score = -(t / 2) log s^2 - sum log diag L_j - (1/2) log p + prior,    s^2 = (|residual|^2 + 1) / t

   The columns of all tables are first the cluster centres of `Grid.screening`, then the members of each cluster. Eight
   points that are evaluated together therefore lie side by side. */

#include <string.h>

#include "factor.h"

enum { H_POINTS = 8192, H_REACH = 16 }; /* the table h of phi(u) + u Phi(u), u in [-H_REACH, H_REACH] */

typedef struct {
    long n, t, G;                 /* agents, observations of each, points of the grid */
    long L, V, R;                 /* length-scales, noises, factors */
    long kernels;                 /* number of kernels: L, or 2 L with a common covariance */
    long kept;                    /* largest number of models that are averaged */
    long coarse, width, clusters; /* columns of cluster centres, columns of a cluster, clusters to search */
    long W;                       /* number of columns */
    double own, least_weight;     /* least_weight: of an averaged model, relative to the largest weight */
} Sizes;

typedef struct {
    const double *plain, *common, *diagonal; /* L x G x W; G x W and W, or NULL */
    const double *noises, *mean, *factors;   /* V, W, R */
    const double *prior;                     /* J x R with J = kernels V */
    const int *rows, *columns;               /* W, the row of each column; G, a column of each row */
    const double *h;                         /* H_POINTS + 1 */
} Given;

typedef struct {
    double *K;                     /* (L + 1) x t x padded t */
    double *L;                     /* J x t x padded t */
    double *z, *g, *one;           /* J x padded t, whitened */
    double *p;                     /* J */
    double *score, *constant, *s2; /* J x R */
    double *residual, *weight;     /* kept x padded t, and kept */
    double *V, *top;               /* t x DOUBLES; clusters */
    long *model, *best;            /* kept, and clusters */
    char *known;                   /* G */
} Arrays;

/* Copies the covariances between the rows `at` of a table, t x padded t. */
static void gather(const Sizes *s, const Given *given, const double *table, const int *at, double *K)
{
    const long t = s->t, tp = up_to(t, DOUBLES);
    for (long k = 0; k < t; k++) {
        const double *row = table + (long)at[k] * s->W;
        for (long i = 0; i < tp; i++)
            K[k * tp + i] = i < t && i >= k / DOUBLES * DOUBLES ? row[given->columns[at[i]]] : 0.0;
    }
}

/* Factorises and scores all models of an agent with rows `at` and values z; returns 0 if a matrix has no factor. */
static int fit(const Sizes *s, const Given *given, const Arrays *arrays, const int *at, const double *z)
{
    const long t = s->t, tp = up_to(t, DOUBLES), R = s->R;
    for (long c = 0; c < s->L; c++)
        gather(s, given, given->plain + c * s->G * s->W, at, arrays->K + c * t * tp);
    if (s->kernels > s->L)
        gather(s, given, given->common, at, arrays->K + s->L * t * tp);
    for (long j = 0; j < s->kernels * s->V; j++) {
        const long c = j / s->V;
        int counts = 0;
        for (long r = 0; r < R; r++) {
            counts |= given->prior[j * R + r] > -INFINITY;
            arrays->score[j * R + r] = -INFINITY;
        }
        if (!counts)
            continue;
        const double *plain = arrays->K + c % s->L * t * tp, *common = arrays->K + s->L * t * tp;
        double *L = arrays->L + j * t * tp, *wz = arrays->z + j * tp, *wg = arrays->g + j * tp;
        double *one = arrays->one + j * tp, logs = 0.0;
        for (long i = 0; i < t * tp; i += DOUBLES) {
            Doubles value = *(const Doubles *)(plain + i);
            if (c >= s->L)
                value = s->own * value + *(const Doubles *)(common + i);
            *(Doubles *)(L + i) = value;
        }
        for (long k = 0; k < t; k++)
            L[k * tp + k] += given->noises[j % s->V];
        if (!factorise(L, t))
            return 0;
        for (long i = 0; i < tp; i++) {
            wz[i] = i < t ? z[i] : 0.0;
            wg[i] = i < t ? given->mean[given->columns[at[i]]] : 0.0;
            one[i] = i < t ? 1.0 : 0.0;
        }
        forward(L, t, wz);
        if (s->kernels > s->L)
            forward(L, t, wg);
        forward(L, t, one);
        for (long k = 0; k < t; k++)
            logs += log(L[k * tp + k]);
        const double p = dot(one, one, tp);
        const double zz = dot(wz, wz, tp), zg = dot(wz, wg, tp), gg = dot(wg, wg, tp);
        const double oz = dot(one, wz, tp), og = dot(one, wg, tp);
        arrays->p[j] = p;
        for (long r = 0; r < R; r++) {
            const double f = given->factors[r], c = (oz - f * og) / p;
            const double S = zz - 2 * f * zg + f * f * gg - p * c * c, s2 = ((S > 0.0 ? S : 0.0) + 1.0) / (double)t;
            arrays->constant[j * R + r] = c;
            arrays->s2[j * R + r] = s2;
            arrays->score[j * R + r] =
                given->prior[j * R + r] - 0.5 * (double)t * log(s2) - logs - 0.5 * log(p);
        }
    }
    return 1;
}

/* Chooses the most probable models, sorted by kernel; returns the probability of all models with factor r > 0. */
static double choose(const Sizes *s, const Arrays *arrays, const Given *given, long *many)
{
    const long R = s->R, models = s->kernels * s->V * R, tp = up_to(s->t, DOUBLES);
    double total = 0.0, shared = 0.0, largest = -INFINITY, kept = 0.0;
    for (long m = 0; m < models; m++)
        largest = arrays->score[m] > largest ? arrays->score[m] : largest;
    for (long m = 0; m < models; m++) {
        arrays->score[m] = exp(arrays->score[m] - largest);
        total += arrays->score[m];
        shared += m % R ? arrays->score[m] : 0.0;
    }
    for (*many = 0; *many < s->kept; ++*many) {
        long best = 0, place = *many;
        for (long m = 1; m < models; m++)
            best = arrays->score[m] > arrays->score[best] ? m : best;
        if (arrays->score[best] < s->least_weight)
            break;
        for (; place > 0 && arrays->model[place - 1] > best; place--) {
            arrays->model[place] = arrays->model[place - 1];
            arrays->weight[place] = arrays->weight[place - 1];
        }
        arrays->model[place] = best;
        arrays->weight[place] = arrays->score[best];
        kept += arrays->score[best];
        arrays->score[best] = -1.0;
    }
    for (long k = 0; k < *many; k++) {
        const long m = arrays->model[k], j = m / R;
        const double f = given->factors[m % R], c = arrays->constant[m];
        arrays->weight[k] /= kept;
        for (long i = 0; i < tp; i++)
            arrays->residual[k * tp + i] =
                arrays->z[j * tp + i] - f * arrays->g[j * tp + i] - c * arrays->one[j * tp + i];
    }
    return shared / total;
}

INLINE double improvement(const double *h, double u)
{
    if (u <= -H_REACH)
        return 0.0;
    if (u >= H_REACH)
        return u;
    const double at = (u + H_REACH) * (H_POINTS / (2.0 * H_REACH));
    const long k = (long)at;
    return h[k] + (at - (double)k) * (h[k + 1] - h[k]);
}

/* The expected improvements over `best` at columns first, .., first + 7; 0 at rows that are already observed. */
static Doubles evaluate(const Sizes *s, const Given *given, const Arrays *arrays, const int *at, double best, long many,
                        long first)
{
    const long t = s->t, tp = up_to(t, DOUBLES), R = s->R, W = s->W;
    const Doubles g = *(const Doubles *)(given->mean + first);
    Doubles *const V = (Doubles *)arrays->V, total = {0.0};
    for (long k = 0; k < many;) {
        const long j = arrays->model[k] / R, c = j / s->V;
        const double *L = arrays->L + j * t * tp, *one = arrays->one + j * tp;
        const double *plain = given->plain + c % s->L * s->G * W + first, *common = given->common + first;
        for (long i = 0; i < t; i++) {
            V[i] = *(const Doubles *)(plain + (long)at[i] * W);
            if (c >= s->L)
                V[i] = s->own * V[i] + *(const Doubles *)(common + (long)at[i] * W);
        }
        Doubles unit = {0.0}, rest = {0.0};
        unit += c < s->L ? unit + 1.0 : s->own + *(const Doubles *)(given->diagonal + first);
        rest += 1.0;
        for (long i = 0; i < t; i += 2) { /* two columns at a time: half the loads and stores */
            const long next = i + 1 < t;
            const double *column = L + i * tp, *second = column + next * tp;
            const Doubles v = V[i] * (1.0 / column[i]);
            const Doubles w = next ? (V[i + 1] - column[i + 1] * v) * (1.0 / second[i + 1]) : 0.0 * v;
            V[i] = v;
            V[i + next] = next ? w : v;
            unit -= v * v + w * w;
            rest -= one[i] * v + one[i + next] * w;
            for (long b = i + 2; b < t; b++)
                V[b] -= column[b] * v + second[b] * w;
        }
        unit += rest * rest / arrays->p[j];
        for (; k < many && arrays->model[k] / R == j; k++) {
            const long m = arrays->model[k];
            const double *residual = arrays->residual + k * tp;
            Doubles mean = arrays->constant[m] + given->factors[m % R] * g;
            for (long i = 0; i < t; i++)
                mean += residual[i] * V[i];
            for (long l = 0; l < DOUBLES; l++) {
                const double sd = sqrt(arrays->s2[m] * (unit[l] > 1e-9 ? unit[l] : 1e-9));
                total[l] += arrays->weight[k] * sd * improvement(given->h, (mean[l] - best) / sd);
            }
        }
    }
    for (long l = 0; l < DOUBLES; l++)
        total[l] = arrays->known[given->rows[first + l]] ? 0.0 : total[l];
    return total;
}

/* The grid row of the largest improvement, among the cluster centres (or all points) and the best clusters. */
static long search(const Sizes *s, const Given *given, const Arrays *arrays, const int *at, double best, long many,
                   double *value)
{
    long found = -1, filled = 0;
    *value = 0.0;
    for (long first = 0; first < s->coarse; first += DOUBLES) {
        const Doubles values = evaluate(s, given, arrays, at, best, many, first);
        for (long l = 0; l < DOUBLES; l++) {
            if (values[l] > *value) {
                *value = values[l];
                found = given->rows[first + l];
            }
            long place = filled;
            while (place > 0 && arrays->top[place - 1] < values[l])
                place--;
            if (place == s->clusters)
                continue;
            filled += filled < s->clusters;
            for (long k = filled - 1; k > place; k--) {
                arrays->top[k] = arrays->top[k - 1];
                arrays->best[k] = arrays->best[k - 1];
            }
            arrays->top[place] = values[l];
            arrays->best[place] = first + l;
        }
    }
    for (long k = 0; k < filled; k++)
        for (long first = 0; first < s->width; first += DOUBLES) {
            const long column = s->coarse + arrays->best[k] * s->width + first;
            const Doubles values = evaluate(s, given, arrays, at, best, many, column);
            for (long l = 0; l < DOUBLES; l++)
                if (values[l] > *value) {
                    *value = values[l];
                    found = given->rows[column + l];
                }
        }
    return found;
}

/* index: n x t rows; z: n x t. out: n rows, -1 if no improvement of at least `least` is expected or a matrix has no
   factor; shared: n, the probability of models with r > 0. Returns 0, or 1 if memory is short. */
int grid_improvement(const Sizes *s, const double *plain, const double *common, const double *diagonal,
                     const double *noises, const double *mean, const double *factors, const double *prior,
                     const int *rows, const int *columns, const double *h, const int *index, const double *z,
                     double least, long *out, double *shared)
{
    const long t = s->t, tp = up_to(t, DOUBLES), J = s->kernels * s->V, models = J * s->R;
    const Given given = {plain, common, diagonal, noises, mean, factors, prior, rows, columns, h};
    Memory memory = {0};
    const Arrays arrays = {
        doubles(&memory, (s->L + 1) * t * tp), doubles(&memory, J * t * tp), doubles(&memory, J * tp),
        doubles(&memory, J * tp), doubles(&memory, J * tp), doubles(&memory, J), doubles(&memory, models),
        doubles(&memory, models), doubles(&memory, models), doubles(&memory, s->kept * tp), doubles(&memory, s->kept),
        doubles(&memory, t * DOUBLES), doubles(&memory, s->clusters + 1), array(&memory, s->kept, sizeof(long)),
        array(&memory, s->clusters + 1, sizeof(long)), array(&memory, s->G, 1),
    };
    if (memory.failed)
        return release(&memory);
    memset(arrays.known, 0, (size_t)s->G);
    for (long a = 0; a < s->n; a++) {
        const int *at = index + a * t;
        double best = -INFINITY, value = 0.0;
        long many = 0;
        out[a] = -1;
        shared[a] = 0.0;
        if (!fit(s, &given, &arrays, at, z + a * t))
            continue;
        shared[a] = choose(s, &arrays, &given, &many);
        for (long i = 0; i < t; i++) {
            arrays.known[at[i]] = 1;
            best = z[a * t + i] > best ? z[a * t + i] : best;
        }
        const long found = search(s, &given, &arrays, at, best, many, &value);
        out[a] = value >= least ? found : -1;
        for (long i = 0; i < t; i++)
            arrays.known[at[i]] = 0;
    }
    release(&memory);
    return 0;
}

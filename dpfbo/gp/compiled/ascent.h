/* Newton ascents of one function from several starts, by the method of dpfbo/gp/newton.py.

   The function is g(x) = A / sqrt(N), A = sum_j w_j cos a_j, N = sum_j cos^2 a_j, a_j = b_j + s_j . x. */

#ifndef DPFBO_ASCENT_H
#define DPFBO_ASCENT_H

#include <math.h>

#include "vectors.h"

enum { MOST_AXES = 16 };

/* The constants of the same names in newton.py and acquisition.py. */
typedef struct {
    double armijo, hope, near, shorter, flattest, tiny, promise, apart, gain, border, edge;
    long evaluations, n_starts, cells;
} Rules;

/* A map; phases and slopes are in half turns. Its M features include padding to a multiple of DOUBLES. */
typedef struct {
    long D, M;
    double *phase;  /* M */
    double *slope;  /* D x M */
    double *cosine; /* M, working memory: cosines, later the factors of the Hessian's terms */
} Map;

typedef struct {
    double x[MOST_AXES], gradient[MOST_AXES], H[MOST_AXES * MOST_AXES];
    double value, radius;
} State; /* of a minimisation of -g */

typedef struct {
    double lower[MOST_AXES], upper[MOST_AXES];
    const double *weight;
    State state;
    int running;
} Start;

/* Value, gradient and Hessian of -g at state->x; inlined, so that D can be a constant for the compiler. */
INLINE void derivatives_in(const long D, const Map *map, const double *weight, State *state)
{
    const long M = map->M;
    const double *restrict phase = map->phase, *restrict slope = map->slope;
    double *restrict cosine = map->cosine;
    const double *x = state->x;
    Doubles A = {0}, N = {0}, by_w[MOST_AXES], by_c[MOST_AXES];
    double dA[MOST_AXES], r[MOST_AXES];
    for (long d = 0; d < D; d++)
        by_w[d] = by_c[d] = (Doubles){0};
    for (long j = 0; j < M; j += DOUBLES) {
        Doubles t = *(const Doubles *)(phase + j), w = *(const Doubles *)(weight + j), c, s;
        for (long d = 0; d < D; d++)
            t += x[d] * *(const Doubles *)(slope + d * M + j);
        cos_and_sin(t, &c, &s);
        *(Doubles *)(cosine + j) = c;
        A += w * c;
        N += c * c;
        Doubles ws = w * s, cs = c * s;
        for (long d = 0; d < D; d++) {
            Doubles S = *(const Doubles *)(slope + d * M + j);
            by_w[d] += ws * S;
            by_c[d] += cs * S;
        }
    }
    const double total = sum(N), n = sqrt(total), g = sum(A) / n, k = g / total;
    state->value = -g;
    for (long d = 0; d < D; d++) {
        dA[d] = -PI * sum(by_w[d]) / n; /* A' / sqrt(N) */
        r[d] = -PI * sum(by_c[d]) / total; /* N' / (2 N) */
        state->gradient[d] = g * r[d] - dA[d];
    }
    for (long j = 0; j < M; j += DOUBLES) {
        Doubles c = *(const Doubles *)(cosine + j), w = *(const Doubles *)(weight + j);
        *(Doubles *)(cosine + j) = c * (2.0 * k * c - w / n) - k; /* g cos(2 a_j) / N - w_j cos(a_j) / sqrt(N) */
    }
    for (long d = 0; d < D; d++) {
        for (long e = 0; e <= d; e++) {
            Doubles H = {0};
            for (long j = 0; j < M; j += DOUBLES)
                H += *(const Doubles *)(cosine + j) * *(const Doubles *)(slope + d * M + j) *
                     *(const Doubles *)(slope + e * M + j);
            double cross = (dA[d] - 1.5 * g * r[d]) * r[e] + (dA[e] - 1.5 * g * r[e]) * r[d];
            state->H[d * D + e] = state->H[e * D + d] = cross - PI * PI * sum(H);
        }
    }
}

static void derivatives(const Map *map, const double *weight, State *state)
{
    switch (map->D) {
    case 1: derivatives_in(1, map, weight, state); break;
    case 2: derivatives_in(2, map, weight, state); break;
    case 3: derivatives_in(3, map, weight, state); break;
    case 4: derivatives_in(4, map, weight, state); break;
    default: derivatives_in(map->D, map, weight, state);
    }
}

static int is_finite(const State *state, long D)
{
    double total = state->value;
    for (long d = 0; d < D; d++)
        total += state->gradient[d];
    for (long d = 0; d < D * D; d++)
        total += state->H[d];
    return total - total == 0.0;
}

/* Eigenvalues of the symmetric matrix A (destroyed) and eigenvectors as columns of V, by Jacobi's rotations. */
static void eigenvectors(long D, double *A, double *V, double *values)
{
    for (long d = 0; d < D * D; d++)
        V[d] = d % (D + 1) == 0;
    for (int sweep = 0; sweep < 30; sweep++) {
        double off = 0.0, all = 0.0;
        for (long p = 0; p < D; p++)
            for (long q = 0; q < D; q++) {
                all += A[p * D + q] * A[p * D + q];
                off += p == q ? 0.0 : A[p * D + q] * A[p * D + q];
            }
        if (!(off > 1e-32 * all))
            break;
        for (long p = 0; p < D; p++)
            for (long q = p + 1; q < D; q++) {
                double apq = A[p * D + q];
                if (apq == 0.0)
                    continue;
                double cotangent = (A[q * D + q] - A[p * D + p]) / (2.0 * apq); /* of twice the angle */
                double t = copysign(1.0, cotangent) / (fabs(cotangent) + sqrt(cotangent * cotangent + 1.0));
                double c = 1.0 / sqrt(t * t + 1.0), s = t * c;
                for (long i = 0; i < D; i++) {
                    double ip = A[i * D + p], iq = A[i * D + q];
                    A[i * D + p] = c * ip - s * iq;
                    A[i * D + q] = s * ip + c * iq;
                }
                for (long i = 0; i < D; i++) {
                    double pi = A[p * D + i], qi = A[q * D + i], vp = V[i * D + p], vq = V[i * D + q];
                    A[p * D + i] = c * pi - s * qi;
                    A[q * D + i] = s * pi + c * qi;
                    V[i * D + p] = c * vp - s * vq;
                    V[i * D + q] = s * vp + c * vq;
                }
                A[p * D + q] = A[q * D + p] = 0.0;
            }
    }
    for (long d = 0; d < D; d++)
        values[d] = A[d * D + d];
}

/* |H|^-1 g on the coordinates that are not held; 0 on the others. */
static void solve(long D, const double *H, const double *g, const int *held, const Rules *rules, double *solution)
{
    double A[MOST_AXES * MOST_AXES], V[MOST_AXES * MOST_AXES], values[MOST_AXES], largest = 0.0;
    for (long d = 0; d < D; d++)
        for (long e = 0; e < D; e++)
            A[d * D + e] = held[d] || held[e] ? 0.0 : H[d * D + e];
    eigenvectors(D, A, V, values);
    for (long d = 0; d < D; d++)
        largest = fmax(largest, fabs(values[d]));
    for (long d = 0; d < D; d++)
        solution[d] = 0.0;
    for (long k = 0; k < D; k++) {
        double along = 0.0, value = fmax(fmax(fabs(values[k]), rules->flattest * largest), rules->tiny);
        for (long d = 0; d < D; d++)
            along += held[d] ? 0.0 : V[d * D + k] * g[d];
        for (long d = 0; d < D; d++)
            solution[d] += held[d] ? 0.0 : V[d * D + k] * along / value;
    }
}

static double length_of(const double *v, long D)
{
    double total = 0.0;
    for (long d = 0; d < D; d++)
        total += v[d] * v[d];
    return sqrt(total);
}

/* The next step of a start; returns its length. */
static double next_step(long D, const Start *start, const Rules *rules, double *step)
{
    const State *state = &start->state;
    double room[MOST_AXES], solution[MOST_AXES];
    int held[MOST_AXES];
    for (long d = 0; d < D; d++) {
        room[d] = (state->gradient[d] > 0 ? start->lower[d] : start->upper[d]) - state->x[d];
        held[d] = fabs(room[d]) <= fmin(rules->near * (start->upper[d] - start->lower[d]), state->radius);
    }
    solve(D, state->H, state->gradient, held, rules, solution);
    double factor = fmin(state->radius / fmax(length_of(solution, D), rules->tiny), 1.0);
    for (long d = 0; d < D; d++)
        step[d] = held[d] ? room[d] : -factor * solution[d];
    return length_of(step, D);
}

/* Moves a start by a step if that decreases its value enough, and doubles its radius; else shrinks the radius. */
static void move(const Map *map, Start *start, const double *step, double length, double longest, const Rules *rules)
{
    State *old = &start->state, new;
    double slope = 0.0;
    for (long d = 0; d < map->D; d++) {
        new.x[d] = fmin(fmax(old->x[d] + step[d], start->lower[d]), start->upper[d]);
        slope += (new.x[d] - old->x[d]) * old->gradient[d];
    }
    derivatives(map, start->weight, &new);
    if (new.value <= old->value + rules->armijo * slope && is_finite(&new, map->D)) {
        new.radius = fmin(2.0 * old->radius, longest);
        *old = new;
    } else {
        old->radius = rules->shorter * length;
    }
}

/* Climbs from all starts in turns; an ascent ends as soon as it is not expected to reach the best value so far. */
static void ascend(const Map *map, Start *starts, long n, double longest, const Rules *rules)
{
    double best = INFINITY;
    for (long i = 0; i < n; i++) {
        State *state = &starts[i].state;
        for (long d = 0; d < map->D; d++)
            state->x[d] = fmin(fmax(state->x[d], starts[i].lower[d]), starts[i].upper[d]);
        derivatives(map, starts[i].weight, state);
        state->radius = longest;
        starts[i].running = is_finite(state, map->D);
        if (!starts[i].running)
            state->value = INFINITY;
    }
    for (long k = 0, going = 1; k < rules->evaluations && going; k++) {
        for (long i = 0; i < n; i++)
            best = fmin(best, starts[i].state.value);
        going = 0;
        for (long i = 0; i < n; i++) {
            double step[MOST_AXES], promised = 0.0;
            if (!starts[i].running)
                continue;
            double length = next_step(map->D, &starts[i], rules, step);
            for (long d = 0; d < map->D; d++)
                promised -= step[d] * starts[i].state.gradient[d];
            starts[i].running = promised > rules->promise && starts[i].state.value - rules->hope * promised <= best;
            if (!starts[i].running)
                continue;
            going = 1;
            move(map, &starts[i], step, length, longest, rules);
        }
    }
}

#endif

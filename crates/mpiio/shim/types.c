/* How datatypes were made. */
#include <stdlib.h>

#include "shim.h"

#if MPI_VERSION >= 4
#define LARGE 1
typedef MPI_Count number;
#else
#define LARGE 0
typedef int number;
#endif

static int combiner_of(int combiner) {
    switch (combiner) {
    case MPI_COMBINER_F90_REAL:
    case MPI_COMBINER_F90_COMPLEX:
    case MPI_COMBINER_F90_INTEGER:
    case MPI_COMBINER_NAMED: return FB_BYTES;
    case MPI_COMBINER_RESIZED:
    case MPI_COMBINER_DUP: return FB_DUP;
    case MPI_COMBINER_CONTIGUOUS: return FB_CONTIGUOUS;
    case MPI_COMBINER_VECTOR: return FB_VECTOR;
    case MPI_COMBINER_HVECTOR: return FB_HVECTOR;
    case MPI_COMBINER_INDEXED: return FB_INDEXED;
    case MPI_COMBINER_HINDEXED: return FB_HINDEXED;
    case MPI_COMBINER_INDEXED_BLOCK: return FB_INDEXED_BLOCK;
    case MPI_COMBINER_HINDEXED_BLOCK: return FB_HINDEXED_BLOCK;
    case MPI_COMBINER_STRUCT: return FB_STRUCT;
    case MPI_COMBINER_SUBARRAY: return FB_SUBARRAY;
    case MPI_COMBINER_DARRAY: return FB_DARRAY;
    default: return FB_UNKNOWN;
    }
}

static int envelope(MPI_Datatype type, number *ints, number *addresses, number *counts,
                    number *types, int *combiner) {
#if LARGE
    return PMPI_Type_get_envelope_c(type, ints, addresses, counts, types, combiner);
#else
    *counts = 0;
    return PMPI_Type_get_envelope(type, ints, addresses, types, combiner);
#endif
}

/* Types that were made with large counts have their numbers, and the addresses after them, in one
 * array. Puts them where those of other types are. */
static void sort_counts(struct fb_node *node, const int64_t *counts, size_t count,
                        const int64_t *ints) {
    size_t numbers = count, n = count ? (size_t)counts[0] : 0, d = (size_t)ints[0];
    switch (node->combiner) {
    case FB_HVECTOR: numbers = 2; break;
    case FB_HINDEXED:
    case FB_STRUCT: numbers = 1 + n; break;
    case FB_HINDEXED_BLOCK: numbers = 2; break;
    case FB_SUBARRAY:
        node->numbers[0] = ints[0];
        memcpy(node->numbers + 1, counts, count * sizeof *counts);
        node->numbers[1 + count] = ints[1];
        node->number_count = count + 2;
        return;
    case FB_DARRAY:
        d = (size_t)ints[2];
        memcpy(node->numbers, ints, 3 * sizeof *ints);
        memcpy(node->numbers + 3, counts, d * sizeof *counts);
        memcpy(node->numbers + 3 + d, ints + 3, (3 * d + 1) * sizeof *ints);
        node->number_count = 4 + 4 * d;
        return;
    default: break;
    }
    memcpy(node->numbers, counts, numbers * sizeof *counts);
    node->number_count = numbers;
    node->address_count = count - numbers;
    memcpy(node->addresses, counts + numbers, node->address_count * sizeof *counts);
}

static int contents(MPI_Datatype type, struct fb_node *node, number ni, number na, number nc,
                    number nt) {
    size_t i, all = (size_t)(ni + na + nc);
    int *ints = malloc(sizeof *ints * (size_t)(ni + 1));
    int64_t *wide = malloc(sizeof *wide * (size_t)(ni + 1));
    MPI_Aint *addresses = malloc(sizeof *addresses * (size_t)(na + 1));
    number *counts = malloc(sizeof *counts * (size_t)(nc + 1));
    MPI_Datatype *types = malloc(sizeof *types * (size_t)(nt + 1));
    int code = MPI_ERR_OTHER;
    node->numbers = malloc(sizeof *node->numbers * (all + 1));
    node->addresses = malloc(sizeof *node->addresses * (all + 1));
    node->types = malloc(sizeof *node->types * (size_t)(nt + 1));
    if (ints && wide && addresses && counts && types && node->numbers && node->addresses &&
        node->types) {
#if LARGE
        code = PMPI_Type_get_contents_c(type, ni, na, nc, nt, ints, addresses, counts, types);
#else
        code = PMPI_Type_get_contents(type, ni, na, nt, ints, addresses, types);
#endif
    }
    if (!code) {
        for (i = 0; i < (size_t)nt; i++)
            node->types[i] = fb_of_type(types[i]);
        node->type_count = (size_t)nt;
        wide[0] = 0;
        for (i = 0; i < (size_t)ni; i++)
            wide[i] = ints[i];
        for (i = 0; i < (size_t)na; i++)
            node->addresses[i] = addresses[i];
        node->address_count = (size_t)na;
        if (nc > 0) {
            sort_counts(node, (const int64_t *)counts, (size_t)nc, wide);
        } else {
            memcpy(node->numbers, wide, (size_t)ni * sizeof *wide);
            node->number_count = (size_t)ni;
        }
    }
    free(ints);
    free(wide);
    free(addresses);
    free(counts);
    free(types);
    return code;
}

int fb_describe(uint64_t handle, struct fb_node *node) {
    MPI_Datatype type = fb_to_type(handle);
    number ni, na, nc, nt;
    MPI_Count size, lb, extent;
    int combiner, code;
    memset(node, 0, sizeof *node);
    if (type == MPI_DATATYPE_NULL)
        return MPI_ERR_TYPE;
    fb_depth++;
    code = envelope(type, &ni, &na, &nc, &nt, &combiner);
    if (!code)
        code = PMPI_Type_size_x(type, &size);
    if (!code)
        code = PMPI_Type_get_extent_x(type, &lb, &extent);
    if (!code) {
        node->combiner = type == MPI_SHORT_INT ? FB_SHORT_INT : combiner_of(combiner);
        node->size = size;
        node->extent = extent;
        node->order_fortran = MPI_ORDER_FORTRAN;
        node->distribute_none = MPI_DISTRIBUTE_NONE;
        node->distribute_block = MPI_DISTRIBUTE_BLOCK;
        node->distribute_cyclic = MPI_DISTRIBUTE_CYCLIC;
        node->distribute_default = MPI_DISTRIBUTE_DFLT_DARG;
    }
    if (!code && node->combiner != FB_BYTES && node->combiner != FB_SHORT_INT)
        code = contents(type, node, ni, na, nc, nt);
    if (code)
        fb_forget(node);
    fb_depth--;
    return code;
}

void fb_forget(struct fb_node *node) {
    for (size_t i = 0; i < node->type_count; i++) {
        MPI_Datatype type = fb_to_type(node->types[i]);
        number ni, na, nc, nt;
        int combiner;
        /* Basic types, and those of Fortran's kinds, are not ours to free. */
        if (!envelope(type, &ni, &na, &nc, &nt, &combiner) && combiner_of(combiner) != FB_BYTES)
            PMPI_Type_free(&type);
    }
    free(node->numbers);
    free(node->addresses);
    free(node->types);
    memset(node, 0, sizeof *node);
}

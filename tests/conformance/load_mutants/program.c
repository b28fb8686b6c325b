/* SPDX-License-Identifier: Apache-2.0
 *
 * A position-independent executable: a shared object by its ELF type, and yet none. */
int main(void) { return 0; }

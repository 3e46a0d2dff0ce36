// The program that links every header's own object with one that holds them all: starting it is the whole test.
int main() {}

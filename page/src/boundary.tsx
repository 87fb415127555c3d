// Keeps a view that cannot be drawn from taking the others along: says so in its place.
import { Component, type ComponentChildren } from "preact";

export class Boundary extends Component<{ children: ComponentChildren }, { error: Error | null }> {
  override state = { error: null as Error | null };

  override componentDidCatch(error: Error): void {
    console.error(error);
    this.setState({ error });
  }

  override render(): ComponentChildren {
    if (this.state.error === null) return this.props.children;
    return (
      <p class="problem" role="status">
        This view cannot be drawn from what the server answered: {this.state.error.message}
      </p>
    );
  }
}
